"""What is wrong with a data folder.

data_check          all that is wrong with a folder, its layout, names and counts; the check before training
detect              checks of the files: from their records to problems; what can be wrong is in problems.yaml
shortcuts           labels that size, format, colour or border reveal
evaluation_images   which images an evaluation uses, and leakage
"""
