"""What a trained network relies on.

attention       attention maps by three methods, also of images that were predicted
faithfulness    the maps of an evaluation, and whether the answer depends on the patches that the maps mark
robustness      `CORRUPTIONS` (blur, noise, JPEG, light, stain), and what they cost: images corrupted and predicted
results         the maps, and what the two checks find, as typed data without torch
"""
