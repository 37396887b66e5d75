"""The pieces behind the `lms` command: one subject per module, one verb per module in `verbs/`."""
