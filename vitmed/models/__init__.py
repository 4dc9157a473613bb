"""The networks: ViT, MAE, LoRA; public weights.

vit       the Vision Transformer, from patch embedding to logits
lora      low-rank adaptation
layers    stems, positions, MLPs, attention pooling, what scales or skips a branch
sizes     `SIZES` by name, and a network in words
mae       the masked autoencoder
hardware  device, arithmetic, and compiling for training
weights/  public weights, and starting from them
"""
