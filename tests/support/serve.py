"""The program's end of `child.Child`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def answer(handle: Callable[[Any], Any]) -> None:
    """Answers the requests on standard input with what `handle` returns for each, to the last.

    What the program prints goes to standard error. If `handle` raises, the answer is the traceback
    and the next request is read.
    """
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            result = {"result": handle(json.loads(line))}
        except Exception:
            result = {"error": traceback.format_exc()}
        channel.write(json.dumps(result) + "\n")
        channel.flush()
