"""Which images, whose, in which split; loading and caching; public data sets.

splits          train, validation and test: by folder, patient, table or seed
samples         `Sample` and `Splits`
split_names     the names of the splits, and the folder names that mean them
listing         the labelled images of a folder or a table
folders         listing files and class folders
npz_folders     a MedMNIST file as folders
tables          CSV tables of labels and patients
patients        who is on an image: expression, table, DICOM PatientID
patient_names   whether file names tell the patient
patient_notes   what must be said about patients and splits
copies          byte-identical images
scan            every file hashed and decoded once: `Scan`
scan_cache      what earlier scans found, by content and decoder versions
read_images     the scan of a run, and where its squares are kept
loading         samples to batches
batches         work on many files in threads
pixel_cache     decoded squares on disk
cards           the cards of public data sets
public_files    MedMNIST, CIFAR and MNIST files
archives        unpacking downloads safely
synthetic       drawn blood cells for `vitmed demo`
"""
