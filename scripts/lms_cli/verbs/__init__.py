"""The verbs of the `lms` command.

A verb is a module with `configure_parser(subparsers)` and `execute(args) -> int`. Everything heavy
is imported inside `execute`, so that `--help` needs the standard library only.
"""
