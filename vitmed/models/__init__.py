"""The networks: ViT, MAE, LoRA; weight files and public weights.

vit                the Vision Transformer, and `SIZES`
rotary_positions   DINOv3's positions
fixed_positions    positions by sine and cosine
swiglu             the gated MLP
attention_pooling  the read-out of SigLIP and CONCH
check_network      whether the numbers of a network go together
patch_embedding    from an image to patches
block_kernels      which attention kernel, and compiled or not
mae                the masked autoencoder
lora               low-rank adaptation
hardware           device and arithmetic
summary            a network in words, and torchinfo's table
pretrained         starting from somebody's weights
weight_layouts     parameter names of public weights, and `LAYOUTS`
network_of_weights the network that a file belongs to
refused_weights    what is no such network, and why
hub_files          what files beside the weights state
licence_terms      what licences of weights demand
weight_files       reading tensors without running code
digests            digests of everything in a checkpoint
resample_weights   another patch grid, patch size or channel count
weights_catalogue  public weights by name, and fetching them
"""
