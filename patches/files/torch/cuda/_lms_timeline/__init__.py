"""Timelines: what happened on a device for a while, in words, as a page and for Perfetto.

`torch.cuda.lms.report` and `lms trace view` draw with it. It needs nothing of PyTorch, and Bokeh
only for the page.
"""
