"""Which images, whose, in which split; loading and caching; public data sets.

splits              train, validation and test: by folder, patient, table or seed
parts               a fold, a share or a sample of the listed images
rare_findings       findings that are too rare to train on or to judge
pretraining_splits  the images to pretrain on
samples             `Sample` and `Splits`
split_names         the names of the splits, and the folder names that mean them
stratify            shares and folds in proportion to classes, findings or ranges of a number, by patient
proportions         how the labels are divided over the splits, in words
listing             the labelled images of a folder or a table
folders             listing files and class folders; a MedMNIST file read like folders
tables              tables matched with images, and patients from them
label_tables        a table of labels: labels, patient, split and further columns of each image
targets             what the labels of a table are: classes, findings, grades or a number
label_kinds         what you ask of labels, and what was read
finding_labels      findings from columns of 1 and 0, or joined by |
grades              classes in order
quantities          a number of each image, and its ranges
group_words         what groups are called: patients, originals, groups of a column
patients            the patient of each image: by expression, table, DICOM PatientID; notes on patients and splits
patient_names       a guess of patients from file names
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
"""
