"""A model at rest and its answers: opened, checked, predicting.

open_model        `open_model`: a checkpoint, an .onnx file or the folder of an ensemble; image files by name
saved_model       what all of these have in common, with the split of every image; `Network`, which runs them
checkpoint        best.pt and last.pt
onnx_model        an exported .onnx file
ensemble          several checkpoints that answer as one
predict           images to logits, by torch, in fp32 or 16-bit floats
exported_graph    the network, its resize, its calibration and its sets as one graph
load              `load`: a model in memory, for programs; what a model says of an image, as cells and plain values
"""
