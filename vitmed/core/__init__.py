"""What every room may use: errors, configuration, the run folder, downloads, text.

config           every setting with its type, range, default, flag and help, in sections; the flags of each command
load_config      YAML files, --set and flags to a configuration
options          how a verb declares its options
errors           the errors of users, and their exit codes; what excludes each other (exclusions.yaml)
upgrade          files of earlier versions as those of today; what to use instead of what is gone
base_models      the base of every typed result and of typed parts in files; how a setting is declared; what labels are
files            files and folders that are written whole or not at all
run_folder       the names of the files in a run folder; its lock; stored paths without private folder names
places           where a command reads and writes: checked before any work, before torch is loaded
dataset_cards    the cards of public data sets
downloads        fetching a public file: resumed, checked, whole or not at all
remote           copies of what lies at s3:// and gs:// addresses
process          cores, memory allocation, waiting threads and signals of this process
messages         messages and progress bars
text             counts, lists and durations in sentences; names without control characters
text_files       CSV as spreadsheets save it, written so that they run nothing; YAML that others wrote
"""
