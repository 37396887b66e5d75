"""Timelines: what happened in a step of a replayed trace, as a page and as a Perfetto trace."""
