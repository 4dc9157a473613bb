"""DICOM files of a given array or picture and given tags, and the tools of dcmtk."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

NAME = "Sentinel^Patient"  # of every image here: it may stand in a report, never in a log
RAMP = np.arange(0, 4096, 64, dtype=np.uint16).reshape(8, 8)


def write(file: Path, array: np.ndarray, frames: int | None = None, **tags: Any) -> Path:
    """A secondary capture of an array, uncompressed; tags go over what is told here."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    ds = Dataset()
    ds.file_meta = FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    ds.SOPClassUID = ds.file_meta.MediaStorageSOPClassUID = CTImageStorage
    ds.SOPInstanceUID = ds.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    shape = array.shape[1:] if frames else array.shape
    ds.Rows, ds.Columns = shape[:2]
    ds.SamplesPerPixel = shape[2] if len(shape) == 3 else 1
    ds.PhotometricInterpretation = "RGB" if len(shape) == 3 else "MONOCHROME2"
    if ds.SamplesPerPixel > 1:
        ds.PlanarConfiguration = 0
    ds.BitsAllocated = ds.BitsStored = array.dtype.itemsize * 8
    ds.HighBit, ds.PixelRepresentation = ds.BitsStored - 1, int(array.dtype.kind == "i")
    if frames:
        ds.NumberOfFrames = frames
    for name, value in tags.items():
        setattr(ds, name, value)
    if tags.get("BitsStored") and "HighBit" not in tags:
        ds.HighBit = ds.BitsStored - 1
    ds.PixelData = array.tobytes() + b"\0" * (array.nbytes % 2)
    ds.save_as(file, enforce_file_format=True)
    return file


def compress(file: Path, syntax: str, **options: Any) -> Path:
    import pydicom

    ds = pydicom.dcmread(file)
    ds.compress(getattr(pydicom.uid, syntax), generate_instance_uid=False, **options)
    ds.save_as(file)
    return file


def dcmtk(tool: str) -> str:
    """The path of a tool of dcmtk; pynetdicom has some of the same names."""
    for folder in (None, "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"):
        found = shutil.which(tool, path=folder)
        if found and "dcmtk" in subprocess.run([found, "--version"], capture_output=True, text=True).stdout:
            return found
    pytest.skip(f"dcmtk's {tool} is not installed (apt install dcmtk)")


def dicom_image(file: Path, picture: Path | np.ndarray, **tags: Any) -> Path:
    """A picture as a DICOM file of a patient and a study."""
    from pydicom.uid import SecondaryCaptureImageStorage, generate_uid

    array = picture if isinstance(picture, np.ndarray) else np.asarray(Image.open(picture).convert("RGB"))
    usual: dict[str, Any] = {
        "PatientName": NAME, "PatientID": "id-sentinel", "PatientSex": "F", "PatientBirthDate": "19700102",
        "StudyInstanceUID": generate_uid(), "SeriesInstanceUID": generate_uid(), "StudyDate": "20261123",
        "StudyTime": "101500", "AccessionNumber": "A1", "StudyID": "S1", "Modality": "OT", "InstanceNumber": 3,
        "SOPClassUID": SecondaryCaptureImageStorage,
    }  # fmt: skip
    return write(file, array, **{**usual, **tags})
