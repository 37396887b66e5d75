"""What a notebook is: cells, of a script that has them, and what they printed.

In such a script a code cell begins with a line `# %%`, and text with `# %% [markdown]`, each of its
lines behind `# `. A code cell of a line `# !` is a command. Many editors know this format.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


@dataclass(frozen=True)
class Cell:
    """A cell."""

    kind: str  # as notebooks have it: code or markdown
    source: str

    @property
    def is_command(self) -> bool:
        """Whether a shell runs it."""
        return self.kind == "code" and self.source.startswith("!")


def of(script: str) -> list[Cell]:
    """The cells of a script."""
    found = []
    for text in re.split(r"^# %%", script, flags=re.MULTILINE)[1:]:
        head, _, body = text.partition("\n")
        kind = "markdown" if head.strip() == "[markdown]" else "code"
        body = body.strip()
        if kind == "markdown" or body.startswith("# !"):
            body = re.sub(r"^# ?", "", body, flags=re.MULTILINE)
        found.append(Cell(kind, body))
    return found


def notebook(found: list[Cell], printed: list[str]) -> dict[str, Any]:
    """A notebook of cells, and what each printed."""
    rows = []
    for number, (cell, text) in enumerate(zip(found, printed), 1):
        row: dict[str, Any] = {"cell_type": cell.kind, "id": f"cell-{number}", "metadata": {}}
        row["source"] = cell.source.splitlines(keepends=True)
        if cell.kind == "code":
            stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(True)}
            row |= {"execution_count": None, "outputs": [stream] if text else []}
        rows.append(row)
    return {"cells": rows, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def markdown(text: str) -> str:
    """The page of a notebook."""
    parts = []
    for row in json.loads(text)["cells"]:
        source = "".join(row["source"])
        if row["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```{'sh' if source.startswith('!') else 'python'}\n{source}\n```")
        for output in row["outputs"]:
            parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
