"""The command line: parse, call one command, print, exit code. No logic.

commands  every command: its options, the function that it calls, and what it prints; imported only when one is used
entry     the list of commands; `main`: errors become messages and exit codes; `Stream`: stdout and stderr that may be
          closed, full or ASCII
terminal  progress bars, tables and JSON
"""

from vitmed.cli.entry import app, main

__all__ = ["app", "main"]
