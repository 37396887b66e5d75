"""Options and fixtures of all tests."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from lms_cli import paths
from support import compatibility
from support.child import SHOWN_LINES
from support.device import Device, find

# A machine's own constraints for pip (pip.conf) are not for the wheels that tests make.
os.environ.setdefault("PIP_CONSTRAINT", os.devnull)
# Its assertions say what differs, as those in tests do.
pytest.register_assert_rewrite("support.programs")


def part(text: str) -> str:
    """For an option "K/N", the K-th of N parts."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text} is not K/N, the K-th of N parts, as 3/8")
    return text


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("sim", "cuda"),
        default=os.environ.get("LMS_DEVICE", "sim"),
        help="where programs run: the simulated device, or a real GPU (default: LMS_DEVICE or sim)",
    )
    parser.addoption(
        "--upstream-part",
        type=part,
        default="1/400",
        metavar="K/N",
        help="run the K-th of N parts of PyTorch's own tests (default: 1/400; 1/1 takes hours)",
    )
    parser.addoption(
        "--random-seeds",
        type=int,
        default=3,
        metavar="N",
        help="how many programs made at random are run (default: 3)",
    )
    parser.addoption(
        "--soak-rounds",
        type=int,
        default=80,
        metavar="N",
        help="rounds of each soak (default: 80, half a minute)",
    )
    parser.addoption(
        "--both-kernels",
        action="store_true",
        help="run tests of async kernels with inline ones too, which are those of most other tests",
    )
    parser.addoption(
        "--compatibility",
        type=Path,
        metavar="FILE",
        help="run the tests that have a line in the table of what works, and write the table",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "compatibility(section, title, shown): a line of docs/compatibility.md if the test passes",
    )
    if config.getoption("compatibility"):
        config.option.markexpr = compatibility.NAME


# Files of few but long tests, which come first: at the end, one process would wait for the other.
LONGEST = {
    "test_distributed",
    "test_lints",
    "test_official",
    "test_operators",
    "test_out_of_memory",
    "test_process",
    "test_sanitizers",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    compatibility.record(items)
    if not config.getoption("both_kernels"):
        names = {item.nodeid for item in items}
        inline = [
            item
            for item in items
            if "inline" in item.nodeid and item.nodeid.replace("inline", "async") in names
        ]
        items[:] = [item for item in items if item not in inline]
        config.hook.pytest_deselected(items=inline)
    items.sort(key=lambda item: item.path.stem not in LONGEST)


class FailuresAtOnce:
    """Writes each failure when it happens: a run that is cut off gets to no summary."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"{report.nodeid} failed:", red=True)
            self._reporter.write_line("\n".join(report.longreprtext.splitlines()[-SHOWN_LINES:]))


def pytest_sessionstart(session: pytest.Session) -> None:
    plugins = session.config.pluginmanager
    reporter = plugins.get_plugin("terminalreporter")
    if reporter:  # processes that run tests for another one have none
        plugins.register(FailuresAtOnce(reporter))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    path: Path | None = config.getoption("compatibility")
    if path:
        reports = [
            report
            for kind in ("passed", "skipped", "failed", "error")
            for report in terminalreporter.stats.get(kind, [])
        ]
        device = "simulated device" if config.getoption("device") == "sim" else "GPU"
        compatibility.write(path, reports, version("torch").partition("+")[0], device)


@pytest.fixture
def disk_folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder on a disk: its file system reads and writes past the page cache."""
    for place in (tmp_path, paths.home()):
        place.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as folder:
            try:
                os.close(os.open(f"{folder}/tried", os.O_RDWR | os.O_CREAT | os.O_DIRECT))
            except OSError:
                continue
            os.unlink(f"{folder}/tried")
            yield Path(folder)
            return
    pytest.skip(f"neither {tmp_path} nor {paths.home()} is on a disk (O_DIRECT)")


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> Device:
    """Runs programs on the device under test."""
    return find(pytestconfig.getoption("device"), pytestconfig.rootpath)
