"""The commands of `graphq`, one file per command; `graphq.cli` lists them and turns errors into exit codes.

A command's file has a docstring, which is the help text, and the functions `add_arguments(parser)` and `run(options)`.
`run` returns the exit code: None or 0 for success, 1 if the command compares results and finds a difference. An error
in a file or an option is raised as a GraphqError or an OSError. A file is imported only when its command runs. `shared`
has helpers for most commands.
"""
