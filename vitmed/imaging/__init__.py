"""From a file to the square array that the network sees; random augmentation.

decode         a file to pixels: the one entry point, `READERS`, and the versions of all decoders as one string
rasters        PNG, JPEG, TIFF, BMP, WebP, GIF, JPEG 2000; .npy arrays
dicom          DICOM
file_record    one decode: a record for the data check, and a square for the network
raw_image      what the readers share: headers, raw images, size limits, colours
window         how a window maps the values of a raw image to grey levels
choose_window  the window of a run, chosen from its training images
preprocessing  decode, window, resize, normalise: the deterministic path
augmentation   random changes by modality, and `POLICIES` (albumentations); copies over which a prediction is averaged
"""
