"""Hints: which storages leave device memory last or first, and what is made again.

The engine keeps a hint with a storage (Note [Hints] in `LMSCoreLayout.h`). What is here says which
storages those are: tensors, what modules have and what they return.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from . import _lms_hooks, _lms_log
from ._lms_library import engine, is_loaded

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.utils.hooks import RemovableHandle

# The numbers of the engine's: Hint::Turn and Hint::Again.
_LAST, _BY_PLAN, _FIRST = 0, 1, 2
_AGAIN = {None: 0, False: 1, True: 2}


@dataclass(frozen=True)
class Hint:
    r"""What a program wants of LMS, as in :func:`lms.hint`. Without arguments: nothing."""

    keep: bool = False
    page: bool = False
    recompute: bool | None = None
    host: bool = False
    activations: bool = False

    def __post_init__(self) -> None:
        if self.keep and self.page:
            raise ValueError("a hint is either keep=True, to leave last, or page=True, to be first")

    def _of_tensors(self) -> Hint | None:
        """The part that is for what a module has; None: it says nothing of that."""
        is_any = self.keep or self.page or self.host or self == Hint()
        return replace(self, recompute=None, activations=False) if is_any else None

    def _of_outputs(self) -> Hint | None:
        """The part that is for what a module returns."""
        if self.activations:
            return replace(self, activations=False)
        is_any = self.recompute is not None or self == Hint()
        return Hint(recompute=self.recompute) if is_any else None


class Hints:
    r"""Hints that were given. As a context it takes them back at the end."""

    def __init__(self) -> None:
        # What was given, and what there was before.
        self._tensors = _weak_by_tensor()
        self._modules: weakref.WeakKeyDictionary[Module, tuple[Hint, Hint]] = (
            weakref.WeakKeyDictionary()
        )

    def remove(self) -> None:
        """Take the hints back. Those that were given before hold again."""
        for tensor, (given, before) in self._tensors.items():
            if _tensors().get(tensor, Hint()) == given:
                _hint_tensor(tensor, before)
        for module, (given, before) in self._modules.items():
            if _hint_of_outputs(module) == given:
                _hint_outputs(module, before)
        self._tensors.clear()
        self._modules.clear()

    def __enter__(self) -> Hints:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _give(self, tensors: Mapping[Tensor, Hint], modules: Mapping[Module, Hint]) -> Hints:
        for tensor, given in tensors.items():
            if given != Hint() and tensor.device.type != "cuda":
                raise ValueError(
                    f"a hint is for device memory, and a tensor is on {tensor.device}. Move the "
                    "model to its device first."
                )
        for tensor, given in tensors.items():
            self._tensors[tensor] = (given, _tensors().get(tensor, Hint()))
            _hint_tensor(tensor, given)
        for module, given in modules.items():
            self._modules[module] = (given, _hint_of_outputs(module))
            _hint_outputs(module, given)
        return self


class Policy:
    r"""Gives hints to the parts of a model.

    To write one's own, derive from it::

    class KeepNorms(torch.cuda.lms.Policy):
        def hint_for(self, name, module, tensor):
            if tensor is not None and isinstance(module, torch.nn.LayerNorm):
                return torch.cuda.lms.Hint(keep=True)

    KeepNorms().apply(model)
    """

    def prepare(self, model: Module) -> None:
        """Called by :meth:`apply` before it asks for hints; to look at the model."""

    def hint_for(self, name: str, module: Module, tensor: Tensor | None) -> Hint | None:
        r"""Return the hint for a tensor of the model, or for what a module returns.

        Args:
            name (str): the tensor's, as in ``named_parameters`` and ``named_buffers``; or the
                module's.
            module (torch.nn.Module): which has the tensor.
            tensor (torch.Tensor, optional): a parameter or buffer. None: the hint is for what
                ``module`` returns, of which only ``recompute`` counts without ``activations``.

        Returns:
            Hint: None leaves things as they are, ``Hint()`` takes an earlier hint back.
        """
        return None

    def apply(self, model: Module) -> Hints:
        r"""Ask for the hints of all parts of a model that is on its device, and give them.

        Raises:
            ValueError: if a tensor with a hint is not on a CUDA device. None is given then.
        """
        self.prepare(model)
        tensors: Any = _weak_by_tensor()
        modules: dict[Module, Hint] = {}
        for path, module in model.named_modules():
            for name, tensor in _own_tensors(module):
                hint = self.hint_for(f"{path}.{name}" if path else name, module, tensor)
                part = hint._of_tensors() if hint is not None else None
                if part is not None and tensor not in tensors:
                    tensors[tensor] = part
            hint = self.hint_for(path, module, None)
            part = hint._of_outputs() if hint is not None else None
            if part is not None:
                modules[module] = part
        return Hints()._give(tensors, modules)


class OnShortage(Policy):
    r"""No hints, and earlier ones are taken back: what leaves is what the plan chooses."""

    def hint_for(self, name: str, module: Module, tensor: Tensor | None) -> Hint:
        """Nothing."""
        return Hint()


class ByName(Policy):
    r"""Hints by the names of parameters, buffers and modules.

    Args:
        hints (dict): hints by patterns, as of :mod:`fnmatch`. The first that matches counts::

            ByName({"*.norm*": Hint(keep=True), "decoder.*": Hint(page=True)})
    """

    def __init__(self, hints: Mapping[str, Hint]) -> None:
        self._hints = dict(hints)

    def hint_for(self, name: str, module: Module, tensor: Tensor | None) -> Hint | None:
        """The hint of the first pattern that matches."""
        return next((hint for key, hint in self._hints.items() if fnmatchcase(name, key)), None)


class ByType(Policy):
    r"""Hints by the types of modules, for all that is within them.

    Args:
        hints (dict): hints by types. Of a module within another the inner one's counts::

            ByType({torch.nn.TransformerEncoderLayer: Hint(page=True)})
    """

    def __init__(self, hints: Mapping[type[Module], Hint]) -> None:
        self._hints = dict(hints)
        self._found: dict[Module, Hint] = {}

    def prepare(self, model: Module) -> None:
        """Find the modules of these types, the outer ones first."""
        self._found.clear()
        for module in model.modules():
            for kind, hint in self._hints.items():
                if isinstance(module, kind):
                    self._found.update(dict.fromkeys(module.modules(), hint))
                    break

    def hint_for(self, name: str, module: Module, tensor: Tensor | None) -> Hint | None:
        """The hint of the module's type, or of the one around it."""
        return self._found.get(module)


class LayerByLayer(Policy):
    r"""The parameters of layers leave first, so that few layers are on the device at a time.

    Args:
        layers (type or tuple of types, optional): of the layers. Default: what is in a
            ``ModuleList`` or ``Sequential``, of nested ones the outer.
    """

    def __init__(self, layers: type[Module] | tuple[type[Module], ...] | None = None) -> None:
        self._kinds = layers
        self._within: set[Module] = set()

    def prepare(self, model: Module) -> None:
        """Find the layers."""
        from torch.nn import ModuleList, Sequential

        self._within.clear()
        for module in model.modules():
            if self._kinds is not None:
                layers = [module] if isinstance(module, self._kinds) else []
            else:
                layers = (
                    list(module.children()) if isinstance(module, (ModuleList, Sequential)) else []
                )
            for layer in layers:
                self._within.update(layer.modules())

    def hint_for(self, name: str, module: Module, tensor: Tensor | None) -> Hint | None:
        """``page=True`` for a layer's tensors."""
        return Hint(page=True) if tensor is not None and module in self._within else None


class _Everything(Policy):
    """One hint for all parts of a model."""

    def __init__(self, hint: Hint) -> None:
        self._hint = hint

    def hint_for(self, name: str, module: Module, tensor: Tensor | None) -> Hint:
        return self._hint


class _Share(Policy):
    """What :func:`lms.install_module_method` promises."""

    def __init__(
        self,
        threshold: int,
        aggressiveness: float,
        allowed_types: Iterable[torch.dtype] | None,
        exclude: Callable[[Tensor], bool] | None,
    ) -> None:
        if not 0 <= aggressiveness <= 1:
            raise ValueError(f"aggressiveness must be between 0 and 1, got {aggressiveness}")
        self._threshold = threshold
        self._share = aggressiveness
        self._types = None if allowed_types is None else set(allowed_types)
        self._exclude = exclude
        self._left = 0.0  # bytes that are to leave first

    def _must_stay(self, tensor: Tensor) -> bool:
        return (
            tensor.nbytes < self._threshold
            or (self._types is not None and tensor.dtype not in self._types)
            or (self._exclude is not None and self._exclude(tensor))
        )

    def prepare(self, model: Module) -> None:
        tensors = [tensor for module in model.modules() for _, tensor in _own_tensors(module)]
        self._left = self._share * sum(one.nbytes for one in tensors if not self._must_stay(one))

    def hint_for(self, name: str, module: Module, tensor: Tensor | None) -> Hint | None:
        if tensor is None:
            return None
        if self._must_stay(tensor):
            return Hint(keep=True)
        self._left -= tensor.nbytes
        return Hint(page=True) if self._left >= 0 else Hint()


def give(what: Module | Tensor | Iterable[Tensor], hint: Hint) -> Hints:
    """Give a hint to all of a model, or to tensors."""
    from torch.nn import Module

    if isinstance(what, Module):
        return _Everything(hint).apply(what)
    listed = [what] if isinstance(what, torch.Tensor) else list(what)
    for one in listed:
        if not isinstance(one, torch.Tensor):
            raise TypeError(f"hints are for modules and tensors, got {type(one).__name__}")
    tensors: Any = _weak_by_tensor()
    for one in listed:
        tensors[one] = hint
    return Hints()._give(tensors, {})


def give_again() -> None:
    """LMS is on: the engine hears of the hints that were given before."""
    for tensor, hint in list(_tensors().items()):
        _tell(tensor, hint)


def share(module: Module, *arguments: Any) -> Hints:
    """Give the hints of `Module.lms`."""
    return _Share(*arguments).apply(module)


# --- what has hints: tensors, and modules for what they return ---

_outputs: weakref.WeakKeyDictionary[Module, tuple[Hint, RemovableHandle]] = (
    weakref.WeakKeyDictionary()
)


def _weak_by_tensor() -> Any:
    from torch.utils.weak import WeakTensorKeyDictionary  # needs all of torch

    return WeakTensorKeyDictionary()


@cache
def _tensors() -> Any:  # hints by tensor
    return _weak_by_tensor()


def _own_tensors(module: Module) -> list[tuple[str, Tensor]]:
    return [
        *module.named_parameters(recurse=False),
        *module.named_buffers(recurse=False),
    ]


def _hint_tensor(tensor: Tensor, hint: Hint) -> None:
    if hint == Hint():
        _tensors().pop(tensor, None)
    else:
        _tensors()[tensor] = hint
    _tell(tensor, hint)


def _hint_of_outputs(module: Module) -> Hint:
    return _outputs[module][0] if module in _outputs else Hint()


def _hint_outputs(module: Module, hint: Hint) -> None:
    if module in _outputs:
        _outputs.pop(module)[1].remove()
    if hint != Hint():
        _outputs[module] = (hint, module.register_forward_hook(_after_forward))


def _after_forward(module: Module, _: Any, output: Any) -> None:
    if not torch.compiler.is_compiling():
        _hint_output(module, output)


# Dynamo traces no function of a file in torch's folder. With this one, which is nothing in a graph,
# the graph would end there.
_after_forward.__code__ = _after_forward.__code__.replace(co_filename="<hints>")


def _hint_output(module: Module, output: Any) -> None:
    from torch.utils._pytree import tree_leaves

    if module in _outputs:  # it is no copy of one that is
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor):
                _tell(leaf, _outputs[module][0])


def _tell(tensor: Tensor, hint: Hint) -> None:
    if not (is_loaded() and engine().is_enabled()):
        return
    storage = _lms_hooks.storage_of(tensor)
    if storage is not None:
        turn = _LAST if hint.keep else _FIRST if hint.page else _BY_PLAN
        engine().set_hint(storage, turn, _AGAIN[hint.recompute], hint.host)
        if hint.keep:
            _lms_log.note_hints()
