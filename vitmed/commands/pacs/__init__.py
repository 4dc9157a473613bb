"""The DICOM node: it receives images, answers each with a Structured Report, and brings the reports to an archive.

settings            `NodeSettings`: what the flags of `vitmed serve` ask for, checked
incoming            the header of an image: whether the node takes it, and what may be said of it in a log
structured_report   an answer of the model -> a Structured Report by TID 1500 (highdicom)
spool               reports on disk until they are sent, and the journal
destinations        where reports go: another node, DICOMweb, a folder
receiving           C-ECHO and C-STORE (pynetdicom); the watched folder
sending             sends what the spool holds, again and again with longer pauses
node                `DicomNode`: all of these together
"""
