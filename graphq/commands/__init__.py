"""The commands of `graphq`, one file per command; `graphq.cli` lists them and turns errors into exit codes.

A command's file has its docstring as the help text, `add_arguments(parser)` and `run(options)`. `run` returns the exit
code: None or 0 for success, 1 if the command compares things and finds a difference. An error in a file or an option is
raised as a GraphqError or an OSError. A file is imported only when its command runs. `shared` has the helpers of most
commands: load the graph of a file of any kind, add the options of `compile`, and `write` a text or JSON.
"""
