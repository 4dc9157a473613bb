"""A model at rest and its answers: opened, checked, predicting.

open_model        `open_model`: a checkpoint, an .onnx file or the folder of an ensemble
saved_model       what all of these have in common
checkpoint        best.pt and last.pt
onnx_model        an exported .onnx file
ensemble          several checkpoints that answer as one
membership        which image is in which split, as a checkpoint stores it
predict           images to logits
predict_files     image files by name to predictions
answers           what a model says of an image, as cells and plain values
torch_network     a checkpoint that predicts in batches, in fp32 or 16-bit floats
exported_graph    the network, its calibration and its sets as one graph
pillow_resize     images of any size in an exported network
load              `load`: a model in memory, for programs
"""
