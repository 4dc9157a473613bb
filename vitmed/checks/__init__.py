"""What is wrong with a data folder.

data_check          all that is wrong with a folder, and the check before training
detect              checks of the files: from their records to problems; what can be wrong is in problems.yaml
folder_contents     the layout of a folder in any state; checks of names and counts, before any file is opened
shortcuts           labels that size, format, colour or border reveal
evaluation_images   which images an evaluation uses, and leakage
"""
