"""Which images, whose, in which split; loading and caching; public data sets.

splits              train, validation and test: by folder, patient, table or seed; to pretrain on; rare findings
samples             `Sample` and `Splits`, and how the labels are divided over the splits
listing             the labelled images of a folder, or of a table with patient, split and further columns
folders             files, class folders and the folders of splits; a MedMNIST file read like folders
tables              tables matched with images
label_kinds         the kinds of labels: what you ask of them, what was read; grades, a number with its ranges, findings
patients            the patient of each image: by expression, table, DICOM PatientID; notes on patients and splits
patient_names       what groups are called; guesses of patients and of augmented copies from file names
duplicates          copies: identical and nearly identical
image_cache         every file hashed and decoded once: `Scan`, and what earlier scans found; identical images
loading             the scan of a run, where its squares are kept, and samples to batches
thread_batches      work on many files in threads
convert             files of public sets (MedMNIST, CIFAR, MNIST) and archives, unpacked safely, as a folder of images
synthetic           drawn blood cells for `vitmed demo`
"""
