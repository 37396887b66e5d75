"""Docstrings as PyTorch writes them, in reStructuredText, read as the site's Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|mod):`([^`]+)`")
LITERAL_BLOCK = re.compile(r"::$", re.MULTILINE)


class Markdown(griffe.Extension):  # type: ignore[misc]  # which mypy does not have
    """Rewrites the few marks that the docstrings of LMS use."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module or function that was read."""
        if obj.docstring:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = LITERAL_BLOCK.sub(":", text)
