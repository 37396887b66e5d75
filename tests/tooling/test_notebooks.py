"""Notebooks are what the examples say; tests/engine/test_libraries.py runs these."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

import pytest
from lms_cli import paths
from lms_cli.errors import UsageError
from lms_cli.site import cells, notebooks
from lms_cli.verbs import docs, plan

SMALL = 30_000  # bytes
SCRIPT = """# %% [markdown]
# # Title
#
# Text.

# %%
print(1)


# %%
# !../../scripts/lms plan \\
#     script.py
"""


def rows(name: str) -> list[dict[str, Any]]:
    text = (notebooks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    return list(json.loads(text)["cells"])


def printed(row: dict[str, Any]) -> str:
    return "".join(line for output in row.get("outputs", []) for line in output["text"])


def test_cells_of_a_script() -> None:
    assert cells.of(SCRIPT) == [
        cells.Cell("markdown", "# Title\n\nText."),
        cells.Cell("code", "print(1)"),
        cells.Cell("code", "!../../scripts/lms plan \\\n    script.py"),
    ]
    assert [cell.is_command for cell in cells.of(SCRIPT)] == [False, False, True]


def test_every_notebook_is_known() -> None:
    there = {path.stem for path in notebooks.FOLDER.glob("*.ipynb")}
    assert there == set(notebooks.LIMITS)


@pytest.mark.parametrize("name", notebooks.LIMITS)
def test_a_notebook_is_its_script(name: str) -> None:
    """After a change of the script: `lms docs --notebooks NAME`."""
    script = (notebooks.FOLDER / f"{name}.py").read_text(encoding="utf-8")
    found = cells.of(script)
    texts = [printed(row) for row in rows(name)]
    made = json.dumps(cells.notebook(found, texts), indent=1, ensure_ascii=False) + "\n"
    path = notebooks.FOLDER / f"{name}.ipynb"
    assert path.read_text(encoding="utf-8") == made
    assert path.stat().st_size < SMALL


@pytest.mark.parametrize("name", notebooks.LIMITS)
def test_a_notebook_shows_training_and_a_plan(name: str) -> None:
    *_, trained = (printed(row) for row in rows(name) if printed(row) and not is_command(row))
    assert re.search(r"paged in \d+ MiB|peak MiB", trained)
    [planned] = [printed(row) for row in rows(name) if is_command(row)]
    for card in plan.CARDS:
        assert card in planned
    assert "no, " in planned  # it does not fit one of them, and
    assert re.search(r"with LMS .*runs", planned)
    assert str(paths.ROOT) not in planned and "/" not in planned


def is_command(row: dict[str, Any]) -> bool:
    return "".join(row["source"]).startswith("!")


def test_a_page_of_a_notebook() -> None:
    found = cells.of(SCRIPT)
    page = cells.markdown(json.dumps(cells.notebook(found, ["", "1\n", ""])))
    assert page == (
        "# Title\n\nText.\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n"
        "```sh\n!../../scripts/lms plan \\\n    script.py\n```\n"
    )


def test_an_environment_of_no_notebook() -> None:
    args = argparse.Namespace(notebooks=None, environment=paths.ROOT, release=None)
    with pytest.raises(UsageError, match="with --notebooks"):
        docs.execute(args)


def test_an_example_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="There are diffusion, "):
        docs.make_notebooks(argparse.Namespace(notebooks=["nonsense"]))
