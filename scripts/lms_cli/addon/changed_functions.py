"""The functions of a Python module that a series changes, cut out of it.

The small wheel gives them to the module at run time, so a change to anything else of it, or to more
than a function's body, is refused here.
"""

from __future__ import annotations

import ast

from lms_cli.errors import SeriesError


def changed(name: str, before: str, after: str) -> str:
    """Source text of the module's functions whose bodies differ, as they are afterwards.

    Args:
        name: of the module's file, for messages.
        before: the module's text.
        after: the same with the series applied.

    Raises:
        SeriesError: more differs than bodies of functions.
    """
    old, new = ast.parse(before).body, ast.parse(after).body
    if len(old) != len(new):
        raise _refusal(name, "statements are added or removed")
    pairs = [(was, is_) for was, is_ in zip(old, new) if ast.dump(was) != ast.dump(is_)]
    lines = after.splitlines()
    texts = []
    for was, is_ in pairs:
        if not isinstance(is_, ast.FunctionDef) or _signature(was) != _signature(is_):
            raise _refusal(name, f"line {is_.lineno} is in no function's body")
        if is_.decorator_list:
            raise _refusal(name, f"{is_.name} is decorated")
        texts.append("\n".join([*lines[is_.lineno - 1 : is_.end_lineno], ""]))
    return "\n\n".join(texts)


def _signature(statement: ast.stmt) -> str:
    """Everything of a function but its body; of another statement just what kind it is."""
    if isinstance(statement, ast.FunctionDef):
        bare = ast.FunctionDef(**{**dict(ast.iter_fields(statement)), "body": []})
        return ast.dump(bare)
    return type(statement).__name__


def _refusal(name: str, problem: str) -> SeriesError:
    return SeriesError(
        f"the small wheel cannot change {name} as the series does: {problem}",
        "Change bodies of its functions only, without decorators.",
    )
