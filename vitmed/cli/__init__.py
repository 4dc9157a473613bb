"""The command line: parse, call one command, print, exit code. No logic.

app         the list of commands, and `vitmed --help`
entry       the door: errors become messages and exit codes
flags       flags from the fields of the configuration, and --help in panels
options     arguments and options of several commands that set no field
terminal    progress bars, tables and JSON

Every other module is the command of its name. It is imported when the command is used.
"""

from vitmed.cli.app import app
from vitmed.cli.entry import main

__all__ = ["app", "main"]
