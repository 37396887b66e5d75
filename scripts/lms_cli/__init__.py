"""The pieces behind the `lms` command.

`verbs/` has the command line, one module for each verb. The other packages are what verbs work on;
the modules beside them serve all.
"""
