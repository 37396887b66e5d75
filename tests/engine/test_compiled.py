"""Programs that Inductor compiles, and kernels that users write, page like any other."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import checked
import pytest
from lms_cli import download, paths, releases
from lms_cli.wheel import compile
from simcuda import cards
from support import torchrun
from support.device import Device
from support.programs import Programs, programs_on
from support.triton import needs_headers

pytestmark = needs_headers


@pytest.fixture(scope="module")
def programs(device: Device) -> Iterator[Programs]:
    """Trains on request."""
    with programs_on(device, capacity="2G") as programs:
        yield programs


@pytest.mark.parametrize(
    ("model", "optimizer", "ratio"),
    [
        ("short_gpt", "adamw_foreach", 3.0),
        ("short_llama", "adamw_foreach", 3.0),
        ("small_vit", "adamw_fused", 3.0),
        ("small_images", "sgd", 3.0),
    ],
)
def test_training(programs: Programs, model: str, optimizer: str, ratio: float) -> None:
    """The same bits, and nothing is held on the device."""
    run = {"model": model, "optimizer": optimizer, "option": "compiled", "steps": 2}
    runs = programs.compare("train", ratio, run)
    assert runs["off"].result["held"] == 0  # so it is in the other modes


@pytest.mark.compatibility("Several GPUs", "`fully_shard` of compiled blocks, Inductor", "works")
def test_sharded_weights(device: Device) -> None:
    scenario = "compiled_sharded_weights"
    torchrun.check(torchrun.run(device, "nccl", scenario), scenario)


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_a_kernel_of_the_user(device: Device, kernels: str) -> None:
    found = device.json(checked.CHECKS / "launches.py", kernels=kernels)
    assert found == {
        "resident before": False,
        "resident after": True,
        "resident then": False,
        "right": True,
        "right views": True,
        "refused": "KeyError",
        "pinned": 0,
        "unmatched": "lms::end_launch: no launch has begun.",
        "held": 4 << 20,
        "address": True,
    }


@pytest.mark.skipif(
    version("torch").startswith(("2.6.", "2.7.")),
    reason="its Inductor has no static launcher, so no kernel can run again",
)
def test_kernels_that_run_again(device: Device, subtests: pytest.Subtests) -> None:
    results = checked.run(device, "kernels", capacity="256M")
    checked.expect_passed(results, subtests)


def line(title: str) -> pytest.MarkDecorator:
    return pytest.mark.compatibility("Compilers and custom operators", title, "works")


@pytest.mark.parametrize(
    "check",
    [
        pytest.param("test_training", marks=line("`torch.compile` with `cpp_wrapper`")),
        pytest.param("test_package", marks=line("AOTInductor: packaged and loaded")),
    ],
)
def test_graphs_in_cpp(device: Device, tmp_path: Path, check: str) -> None:
    release = releases.default(paths.PATCHES)
    if version("torch").partition("+")[0] != release.version:
        pytest.skip("CUDA's C++ headers are here for the default release only")
    headers = [
        download.fetch_locked(paths.LOCKS / "headers.lock", "nvidia-cuda-cccl"),
        *(download.fetch_locked(release.lock, package) for package in release.cuda_headers),
    ]
    folders = [folder for wheel in headers for folder in compile.unpack_headers_of(wheel)]
    runtime = next(Path(sysconfig.get_path("purelib")).glob("nvidia/*/lib/libcudart.so.*"))
    (tmp_path / "libcudart.so").symlink_to(runtime)
    libraries = [tmp_path, *([device.build / "lib"] if device.build else [])]
    env = {
        "CPATH": os.pathsep.join(map(str, folders)),
        "LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = device.run(checked.CHECKS / "cpp_graphs.py", f"TestCppGraphs.{check}", env=env)
    assert done.status == 0, done.stdout + done.stderr


@pytest.mark.parametrize("first", ["lms", "inductor"])
def test_launches_in_virtual_time(device: Device, first: str) -> None:
    """They take as long with LMS as without it, which hooks the same functions."""
    if not device.simulated:
        pytest.skip("what is expected is exact in virtual time only")
    card = cards.card("A100-SXM-40GB")
    bandwidth = card["bandwidth"] * card["bandwidth_efficiency"]
    takes = round(card["launch_ns"] + 1e9 * 2 * (4 << 20) / bandwidth)
    check = checked.CHECKS / "launch_times.py"
    found = device.json(check, first, kernels="timed", card="A100-SXM-40GB", capacity="2G")
    assert found == [[takes, takes]] * 3
