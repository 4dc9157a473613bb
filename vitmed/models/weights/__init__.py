"""Public weights: which there are, and how a network starts from them.

catalogue   public weights by name, and fetching them
files       reading tensors without running code
layouts     parameter names of public weights, and `LAYOUTS`
resample    another patch grid, patch size or channel count
pretrained  starting from somebody's weights
"""
