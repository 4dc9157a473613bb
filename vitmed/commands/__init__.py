"""One verb a file: what the command line calls and `import vitmed` offers."""
