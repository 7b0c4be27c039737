"""The commands of `graphq`, one file per command; `graphq.cli` lists them and turns errors into exit codes.

The docstring of a command's file is the help text. The file has the tuple `ARGUMENTS`, made of `shared.option`, and
the function `run(options)`. `run` returns the exit code: None or 0 for success, 1 if the command compares results and
finds a difference. An error in a file or an option is raised as a GraphqError or an OSError. A file is imported only
when its command runs. `shared` has helpers for most commands.
"""
