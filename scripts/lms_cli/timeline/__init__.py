"""Timelines of replayed traces. What draws them, `_lms_timeline`, is part of the wheels."""
