"""The networks: ViT, MAE, LoRA; weight files and public weights.

vit                the Vision Transformer, and `SIZES`
rotary_positions   DINOv3's positions
fixed_positions    positions by sine and cosine
swiglu             the gated MLP
attention_pooling  the read-out of SigLIP and CONCH
check_network      whether the numbers of a network go together
mae                the masked autoencoder
lora               low-rank adaptation
layers             from an image to patches
compile            which attention kernel, and compiled or not
weights/           public weights, and starting from them
hardware           device and arithmetic
summary            a network in words, and torchinfo's table
network_of_weights the network that a file belongs to
refused_weights    what is no such network, and why
hub_files          what files beside the weights state
licence_terms      what licences of weights demand
digests            digests of everything in a checkpoint
"""
