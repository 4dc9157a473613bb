"""What is wrong with a data folder.

data_check          all that is wrong with a folder, and the check before training
problems            what can be wrong and how bad it is: `PROBLEMS`
detect              checks of the files: from their records to problems
folder_problems     checks of names and counts, before any file is opened
folder_contents     the layout of a folder in any state
duplicates          copies: identical and nearly identical
shortcuts           labels that size, format, colour or border reveal
evaluation_images   which images an evaluation uses, and leakage
"""
