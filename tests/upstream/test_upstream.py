"""PyTorch's own tests pass with LMS short of memory and under chaos, where they pass without it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from support import source_tree
from support.device import Device
from upstream import suite

if not version("torch").startswith(f"{source_tree.VERSION}+"):
    reason = f"PyTorch's own tests are run on {source_tree.VERSION}, whose source is at hand"
    pytest.skip(reason, allow_module_level=True)


@pytest.mark.parametrize("file", suite.files())
def test_what_passes_without_lms_passes_with_it(
    device: Device, pytestconfig: pytest.Config, tmp_path: Path, file: str
) -> None:
    part = pytestconfig.getoption("--upstream-part")
    expected = suite.run(device, file, "off", tmp_path, part).passed
    excused = suite.excused(file)
    lost = {
        f"{mode} {name}": message
        for mode in ("small", "chaos")
        for name, message in suite.lost(device, file, mode, tmp_path, expected).items()
        if name not in excused
    }
    assert not lost, "\n".join(f"{name}\n{message}" for name, message in lost.items())
