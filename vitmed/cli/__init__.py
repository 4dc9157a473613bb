"""The command line: parse, call one command, print, exit code. No logic.

app         the list of commands, and `vitmed --help`
entry       `main`: errors become messages and exit codes
flags       flags from the fields of the configuration, and --help in panels
options     shared arguments and options that are not fields of the configuration
terminal    progress bars, tables and JSON

Every other module holds the command of its name, imported only when it is used.
"""

from vitmed.cli.app import app
from vitmed.cli.entry import main

__all__ = ["app", "main"]
