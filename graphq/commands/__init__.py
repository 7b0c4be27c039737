"""The commands of `graphq`, one file for each; `graphq.cli` lists them and turns errors into exit codes.

A command's file has its docstring as the help text, `add_arguments(parser)`, and `run(options)`, which returns the exit
code: None or 0 for success, 1 if something that the command compares is different. An error in a file or an option is
raised as a GraphqError or an OSError. A file is imported only when its command runs. `shared` has what most commands
need: the graph of a file of any kind, options of `compile`, and `write`, which prints a text or JSON.
"""
