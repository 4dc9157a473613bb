"""What every room may use: errors, configuration, hardware, the run folder, downloads, text.

config          the configuration: fields, YAML files, defaults
flags           which field each flag of the command line sets
errors          the errors that a user can cause, and their exit codes
frozen          `Frozen`: the base of every typed result
files           files that are written whole or not at all
run_folder      the names of the files in a run folder
cache_folder    where downloads and decoded images are kept
downloads       fetching a public file: resumed, checked, whole or not at all
hardware        device and arithmetic
process         cores, memory allocation and waiting threads of this process
environment     what a run depended on, for environment.json
ui              messages and progress bars
text            counts and lists in sentences
csv_files       CSV as spreadsheets save it
"""
