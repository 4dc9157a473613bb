"""A model at work: exported, published, served, and written into DICOM.

export_gate        an export answers as its checkpoint does, or is refused
export_onnx        the .onnx file
export_weights     weights for other libraries
weight_forms       what timm and transformers read of a folder
structured_report  the answer as a DICOM Structured Report
http/              the server of `vitmed serve`
"""
