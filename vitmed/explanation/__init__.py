"""What a trained network relies on.

attention       attention maps by three methods, also of images that were predicted
faithfulness    the maps of an evaluation, and whether the answer depends on the patches that the maps mark
corruptions     blur, noise, JPEG, light, stain: `CORRUPTIONS`
robustness      what corruptions cost: a sample of images, corrupted and predicted, and its numbers
results         the maps, and what the two checks find, as typed data without torch
"""
