"""A model at work: exported, published, accepted, watched, served, and written into DICOM.

acceptance         pre-stated criteria that a new model must meet
bundle             a model and all that it needs as one archive
export             the .onnx file, and a folder with weights and card for timm, if they answer as the checkpoint does
monitor            whether a model at work still does what it did: control charts
structured_report  the answer as a DICOM Structured Report
http/              the server of `vitmed serve`
"""
