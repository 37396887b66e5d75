"""Run the cells of a notebook, a JSON list, one after the other; print what each printed, as one.

It is a program of its own, in the environment that has the examples' libraries.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any


def main() -> None:
    """Standard input to standard output."""
    # As in a notebook, where an example does not look at the command line.
    names: dict[str, Any] = {"__name__": "__main__", "get_ipython": None}
    printed = []
    for cell in json.load(sys.stdin):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            exec(compile(cell, "cell", "exec"), names)
        printed.append(text.getvalue())
    json.dump(printed, sys.stdout)


if __name__ == "__main__":
    main()
