"""Public weights: which there are, and how a network starts from them.

catalogue   public weights by name, and what publishers state: terms, preprocessing, activation
files       reading tensors without running code, and digests of everything in a checkpoint
layouts     parameter names of public weights, `LAYOUTS`, and the network that they belong to
resample    another patch grid, patch size or channel count
pretrained  starting from somebody's weights: what is refused, and why; every tensor accounted for
"""
