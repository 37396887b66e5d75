"""The pages of a package index, as HTML (PEP 503) and JSON (PEP 691), from the manifest alone."""

from __future__ import annotations

import html
import json
import urllib.parse
from collections.abc import Iterable
from typing import Any

from lms_cli.index.manifest import Published

HTML_VERSION = "1.0"  # PEP 629
JSON_VERSION = "1.1"  # PEP 700: sizes, and a list of versions


def pages(wheels: Iterable[Published]) -> dict[str, str]:
    """The text of every page, by its path in the folder of pages; that of all projects comes last.

    The same wheels give the same text.
    """
    projects: dict[str, list[Published]] = {}
    for wheel in sorted(wheels, key=_order):
        projects.setdefault(wheel.project, []).append(wheel)
    made: dict[str, str] = {}
    for project, listed in projects.items():
        made[f"{project}/index.html"] = _html(f"Links for {project}", map(_link, listed))
        made[f"{project}/index.json"] = _json(
            name=project,
            versions=list(dict.fromkeys(wheel.version for wheel in listed)),
            files=[_file(wheel) for wheel in listed],
        )
    links = (f'<a href="{project}/">{project}</a>' for project in projects)
    made["index.html"] = _html("Simple index", links)
    made["index.json"] = _json(projects=[{"name": project} for project in projects])
    return made


def _order(wheel: Published) -> tuple[object, ...]:
    from packaging.version import Version

    return wheel.project, Version(wheel.version), wheel.filename


def _address(wheel: Published) -> str:
    """Where a wheel is, as seen from its project's page."""
    return wheel.url or f"../../{urllib.parse.quote(wheel.filename)}"


def _link(wheel: Published) -> str:
    metadata = f"sha256={wheel.metadata_sha256}"
    attributes = {
        "href": f"{_address(wheel)}#sha256={wheel.sha256}",
        "data-requires-python": wheel.requires_python,
        "data-core-metadata": metadata,
        "data-dist-info-metadata": metadata,  # its name before PEP 714
    }
    text = " ".join(f'{name}="{html.escape(it)}"' for name, it in attributes.items() if it)
    return f"<a {text}>{html.escape(wheel.filename)}</a>"


def _file(wheel: Published) -> dict[str, Any]:
    row: dict[str, Any] = {
        "filename": wheel.filename,
        "url": _address(wheel),
        "hashes": {"sha256": wheel.sha256},
        "size": wheel.size,
        "core-metadata": {"sha256": wheel.metadata_sha256},
    }
    return row | ({"requires-python": wheel.requires_python} if wheel.requires_python else {})


def _html(title: str, links: Iterable[str]) -> str:
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{HTML_VERSION}">',
        f"<title>{title}</title>",
        "</head>",
        "<body>",
        f"<h1>{title}</h1>",
        *(f"{link}<br>" for link in links),
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def _json(**content: Any) -> str:
    return json.dumps({"meta": {"api-version": JSON_VERSION}, **content}, indent=1) + "\n"
