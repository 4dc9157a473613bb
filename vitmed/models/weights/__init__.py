"""Public weights: which there are, and how a network starts from them.

catalogue   public weights by name (catalogue.yaml), and what publishers state: terms, preprocessing, activation
files       reading tensors without running code, and digests of everything in a checkpoint; what is no plain ViT
layouts     parameter names of public weights, `LAYOUTS`, and the network that they belong to
choice      `--weights auto`: what lies on this machine, a download, or none
pretrained  starting from somebody's weights: every tensor accounted for, also on another patch grid or patch size
"""
