"""From a file to the square array that the network sees: one implementation, for training and ever after.

`read_image` decodes faithfully or refuses; `Preprocessing` makes it square and, per batch, normalises it.
It is stored in the checkpoint, so that `predict` rebuilds it and never uses today's defaults.
"""

from vitmed.images.colours import MODES
from vitmed.images.decoded import Deep, FileFacts
from vitmed.images.preprocessing import CONSTANTS, RESAMPLING, RESIZES, Preprocessing
from vitmed.images.reading import READERS, decode, inspect, is_image, read_image, read_size
from vitmed.images.settling import Settled, settle
from vitmed.images.window import Window

__all__ = [
    "CONSTANTS",
    "MODES",
    "READERS",
    "RESAMPLING",
    "RESIZES",
    "Deep",
    "FileFacts",
    "Preprocessing",
    "Settled",
    "Window",
    "decode",
    "inspect",
    "is_image",
    "read_image",
    "read_size",
    "settle",
]
