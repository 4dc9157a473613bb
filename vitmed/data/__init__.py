"""Which images, whose, in which split; loading and caching; public data sets.

splits              train, validation and test: by folder, patient, table or seed; to pretrain on; rare findings
stratify            a fold, a share or a sample of the listed images, in proportion, by patient
samples             `Sample` and `Splits`, and how the labels are divided over the splits
listing             the labelled images of a folder or a table
folders             files, class folders and the folders of splits; a MedMNIST file read like folders
tables              tables matched with images, and patients from them
label_tables        a table of labels: labels, patient, split and further columns of each image
label_kinds         the kinds of labels: what you ask of them, what was read; grades, and a number with its ranges
finding_labels      findings from columns of 1 and 0, or joined by |
patients            the patient of each image: by expression, table, DICOM PatientID; notes on patients and splits
patient_names       what groups are called; a guess of patients from file names
augmented_copies    a guess of augmented copies of one original from file names
scan                every file hashed and decoded once: `Scan`; identical images
image_cache         hashes, records and squares of earlier scans, by content and decoder versions
read_images         the scan of a run, and where its squares are kept
loading             samples to batches
thread_batches      work on many files in threads
convert             files of public sets, archives and WebDataset tars as a folder of images
public_files        MedMNIST, CIFAR and MNIST files
archives            unpack downloads safely
synthetic           drawn blood cells for `vitmed demo`
synthetic_chests    drawn chests for `vitmed demo`
"""
