"""A page of what LMS and the program did on a device for a while: `torch.cuda.lms.report`."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ._lms_hooks import storage_of
from ._lms_library import engine
from ._lms_log import logger
from ._lms_stats import device_index
from ._lms_timeline import contents, measured, named, perfetto, story
from ._lms_timeline.measured import Known
from ._lms_timeline.named import Names
from ._lms_timeline.recorded import IN, OUT, Recorded

if TYPE_CHECKING:
    from torch.types import Device

PAGE, PERFETTO = ".html", ".json"


@contextmanager
def report(
    path: str | os.PathLike[str],
    device: Device = None,
    model: torch.nn.Module | None = None,
) -> Iterator[None]:
    r"""Write a page that shows what happens on a device while the context is open.

    Around a step of the training, or a few::

        with torch.cuda.lms.report("step.html", model=model):
            train_step()

    The page has the operators, what is made again, copies, what a disk reads and writes, waits,
    and device and host memory, over time; it is one file, which needs no network. It is drawn by
    Bokeh 3.4 or newer (``pip install bokeh``). A file whose name ends in ``.json`` is for Perfetto
    instead (https://ui.perfetto.dev), and needs nothing.

    Nothing else changes: neither what LMS decides nor the bits of any result. An operator costs
    some microseconds more on the host. At the end the host waits for the device, and the page
    is written. If the body ends with an exception, the page shows what happened until then; if
    it cannot be written in that case, the log says so.

    Args:
        path (str or os.PathLike): the file, which ends in ``.html`` or ``.json``. It is replaced
            at the end.
        device (torch.device or int, optional): the current device if None.
        model (torch.nn.Module, optional): the page calls parameters and their gradients by their
            names in it, and says in which of its modules an operator ran in the forward pass.

    Raises:
        ValueError: if the path ends in something else, or there is no such device.
        OSError: if the file cannot be written.
        ImportError: if Bokeh is missing. These are raised before the body runs, as the next.
        RuntimeError: if LMS is off, or records something already: another report, or the trace
            that ``PYTORCH_LMS_TRACE`` asks for.
    """
    path = os.path.abspath(path)
    draw = _drawing_for(path)
    _try_to_write(path)
    if not torch.cuda.get_enabled_lms():
        raise RuntimeError(
            "Large Model Support is off, so there is nothing to report. Turn it on with "
            "torch.cuda.set_enabled_lms(True)."
        )
    torch.cuda.init()
    index = device_index(device)
    ops = engine()
    ops.open_report(index)

    def write() -> None:
        lines = ops.close_report()
        if lines:  # none in a process made by fork: the report is its parent's
            recorded, names = measured.read(lines, _known(model))
            named.infer_kinds(names, recorded)
            _replace(path, draw(index, recorded, names))

    try:
        with _modules_told(model):
            yield
    except BaseException:
        try:
            write()
        except Exception:
            logger.warning("the report %s cannot be written", path, exc_info=True)
        raise
    write()


def _drawing_for(path: str) -> Callable[[int, Recorded, Names], str]:
    """What makes the text of a file of that name."""
    if path.endswith(PERFETTO):
        return _perfetto
    if not path.endswith(PAGE):
        raise ValueError(f"a report ends in {PAGE} or {PERFETTO}, got {path!r}")
    try:
        from ._lms_timeline import drawing
    except ImportError as error:
        raise ImportError(
            f"Bokeh 3.4 or newer draws the page, and cannot be imported: {error}\n"
            f"Install it with `pip install bokeh`, or name a file that ends in {PERFETTO}, for "
            "https://ui.perfetto.dev."
        ) from error

    def page(device: int, recorded: Recorded, names: Names) -> str:
        limit = torch.cuda.get_limit_lms(device)
        facts = [*_moved(recorded, names), ("device memory", story.size(limit))]
        return drawing.draw(contents.contents(_title(device), facts, limit, recorded, names))

    return page


def _perfetto(device: int, recorded: Recorded, names: Names) -> str:
    return perfetto.text(_title(device), recorded, names)


def _title(device: int) -> str:
    program = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    return f"{program}, cuda:{device}: {torch.cuda.get_device_name(device)}"


def _moved(recorded: Recorded, names: Names) -> list[tuple[str, str]]:
    """Bytes that went somewhere, or that none did."""
    if not recorded.copies and not recorded.drops:
        return [("moved", "nothing: everything fitted")]

    def total(direction: int) -> str:
        copied = [copy.storage for copy in recorded.copies if copy.direction == direction]
        return story.size(sum(names.storages[number].bytes for number in copied))

    return [("to the device", total(IN)), ("to the host", total(OUT))]


# --- names ---


@contextmanager
def _modules_told(model: torch.nn.Module | None) -> Iterator[None]:
    """The engine is told in which module of the model the program is, and changes nothing by it."""
    if model is None:
        yield
        return
    ops = engine()
    entered = [""]

    def hooks_of(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(*_: Any) -> None:
            entered.append(name)
            ops.enter_module(name)

        def leave(*_: Any) -> None:
            entered.pop()
            ops.enter_module(entered[-1])

        return enter, leave

    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            enter, leave = hooks_of(name or type(model).__name__)
            hooks.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


def _known(model: torch.nn.Module | None) -> dict[int, Known]:
    """Names of what the model has, by the ids of storages."""
    found: dict[int, Known] = {}
    if model is None:
        return found

    def add(tensor: torch.Tensor | None, name: str, kind: str) -> None:
        storage = None if tensor is None else storage_of(tensor)
        if storage is not None and (identity := engine().storage_id(storage)):
            found.setdefault(identity, Known(name, kind))

    for name, parameter in model.named_parameters():
        add(parameter, name, "parameter")
        add(parameter.grad, f"{name}.grad", "gradient")
    for name, buffer in model.named_buffers():
        add(buffer, name, "")
    return found


# --- files ---


def _try_to_write(path: str) -> None:
    """Raise what `_replace` would."""
    if os.path.isdir(path):
        raise IsADirectoryError(f"the report cannot be written: {path} is a folder")
    with tempfile.TemporaryFile(dir=os.path.dirname(path) or "."):
        pass


def _replace(path: str, text: str) -> None:
    """Write a file that is there as a whole or not at all."""
    handle, temporary = tempfile.mkstemp(
        prefix=f".{os.path.basename(path)}.", suffix=".part", dir=os.path.dirname(path) or "."
    )
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
