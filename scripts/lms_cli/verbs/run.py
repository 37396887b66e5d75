"""`lms run`."""
from typing import Any
def configure_parser(subparsers: Any) -> None:
    pass
