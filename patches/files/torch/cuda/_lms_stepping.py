"""Steps of an optimizer within the backward pass, each parameter's when its gradient is complete.

An optimizer's own step goes over all of its state at once, while nothing is computed that copies
could hide behind, and all gradients are kept until then. Within the backward pass the state of one
parameter at a time comes and goes under the computation of the other gradients.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import OptState
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from torch.amp import GradScaler

# To the norm, where gradients are clipped by it: torch.nn.utils.clip_grad_norm_ adds it.
_EPSILON = 1e-6


class _Mode(Enum):
    """What is done with a gradient that is complete."""

    STEP = auto()
    KEEP = auto()  # more is added to it
    MEASURE = auto()  # and let go


class SteppingInBackward:
    r"""An optimizer whose steps run within backward passes, by :func:`lms.step_in_backward`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        check_optimizer(optimizer)
        self._optimizer = optimizer
        self._bare_step = _bare_step(type(optimizer))
        self._mode = _Mode.STEP
        self._group_of: dict[torch.Tensor, int] = {}
        self._stepped: set[torch.Tensor] = set()  # since the last optimizer.step()
        self._kept: dict[torch.Tensor, torch.Tensor] = {}  # gradients of backward passes before
        self._norms: dict[torch.Tensor, torch.Tensor] = {}
        self._scale: _Scale | None = None
        self._factor: torch.Tensor | None = None  # for all gradients, to clip them
        self._completed: set[torch.Tensor] = set()  # of these, by the backward pass under way
        self._was_scaled = False
        self._has_looked_for_replicas = False
        # The optimizer keeps this object. Its parameters must not: the garbage collector does not
        # see what their hooks refer to.
        self._handles = [optimizer.register_step_post_hook(self._end_step)]
        hook = _weak(self._take_gradient)
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self._group_of[parameter] = number
                    self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
        _refuse_clipping()
        _all.add(self)

    def remove(self) -> None:
        """Let ``optimizer.step()`` step as before."""
        for handle in self._handles:
            handle.remove()
        _all.discard(self)

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Keep gradients and add to them: for all backward passes of a step but the last."""
        outer, self._mode = self._mode, _Mode.KEEP
        try:
            yield
        finally:
            self._mode = outer

    def backward(
        self,
        loss: torch.Tensor,
        *,
        max_norm: float | None = None,
        scaler: GradScaler | None = None,
    ) -> torch.Tensor | None:
        r"""Step with gradients that are clipped by the norm of all, or that were scaled.

        Both need all gradients before the first step. So the backward pass runs twice: the first
        one looks at the gradients and lets them go. The results are those of
        ``scaler.scale(loss).backward()``, ``scaler.unscale_(optimizer)`` and
        ``torch.nn.utils.clip_grad_norm_`` of the optimizer's parameters in its order.

        Args:
            loss (torch.Tensor): a number, not scaled.
            max_norm (float, optional): to which the norm of all gradients is clipped.
            scaler (torch.amp.GradScaler, optional): its ``step`` and ``update`` are called
                afterwards, as ever.

        Returns:
            torch.Tensor: the norm before it is clipped; None without ``max_norm``.

        Raises:
            RuntimeError: if weights are sharded by ``fully_shard``.
        """
        if any(map(is_traceable_wrapper_subclass, self._group_of)):
            raise RuntimeError(
                "stepping.backward() knows no norm of sharded weights: this process has a part of "
                "each gradient. Clip nothing, or step after the backward pass."
            )
        self._kept = {one: one.grad for one in self._group_of if one.grad is not None}
        for parameter in self._kept:
            parameter.grad = None
        if scaler is not None and scaler.is_enabled():
            loss = scaler.scale(loss)
            self._scale, self._was_scaled = _Scale(scaler), True
        try:
            self._run(loss, _Mode.MEASURE, retain_graph=True)
            norm = None
            if max_norm is not None:
                norm = self._total_norm()
                self._factor = torch.clamp(max_norm / (norm + _EPSILON), max=1.0)
            if self._scale is None or self._scale.end_check(self._optimizer):
                self._run(loss, _Mode.STEP)
            return norm
        finally:
            self._mode = _Mode.STEP
            self._scale = self._factor = None
            self._kept.clear()
            self._norms.clear()

    def _run(self, loss: torch.Tensor, mode: _Mode, **options: bool) -> None:
        self._mode = mode
        self._completed.clear()
        loss.backward(**options)
        for parameter, gradient in self._kept.items():
            if parameter not in self._completed:  # this backward pass had nothing to add
                with torch.no_grad():
                    self._use(parameter, gradient.clone())

    def _total_norm(self) -> torch.Tensor:
        norms = [self._norms[one] for one in self._group_of if one in self._norms]
        if not norms:
            return torch.tensor(0.0)
        return torch.linalg.vector_norm(torch.stack([one.to(norms[0].device) for one in norms]))

    @torch.no_grad()
    def _take_gradient(self, parameter: torch.Tensor) -> None:
        """Called by autograd when it has stored or added to the parameter's gradient."""
        if self._mode is _Mode.KEEP or parameter.grad is None:
            return
        self._look_for_replicas()
        gradient = parameter.grad
        if parameter in self._kept:
            self._completed.add(parameter)
            gradient = self._kept[parameter] + gradient
        self._use(parameter, gradient)

    def _use(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        if self._scale is not None:
            self._scale.unscale(gradient)
        if self._mode is _Mode.MEASURE:
            self._norms[parameter] = torch._foreach_norm([gradient])[0]
        else:
            if self._factor is not None:
                gradient.mul_(self._factor.to(gradient.device))
            parameter.grad = gradient
            self._step(parameter)
        parameter.grad = None

    def _step(self, parameter: torch.Tensor) -> None:
        """Steps with the gradient that the parameter has now."""
        if parameter in self._stepped:
            raise RuntimeError(
                "a gradient came after the step that the backward pass took with its parameter "
                "already, since the last optimizer.step(). Call optimizer.step() after each "
                "backward pass. To accumulate gradients run all but the last one inside "
                "`with stepping.accumulating():`. Blocks that share weights cannot be checkpointed "
                "with use_reentrant=True."
            )
        self._stepped.add(parameter)
        self._apply(parameter)
        # Autograd must not take the new bytes for those that it saved. Most optimizers step with
        # operators on lists, which do not tell it.
        torch.autograd.graph.increment_version(parameter)

    def _apply(self, parameter: torch.Tensor) -> None:
        group = {**self._options(parameter), "params": [parameter]}
        self._bare_step(self._alone(group, self._optimizer.state))

    def _options(self, parameter: torch.Tensor) -> dict[str, Any]:
        """Of the optimizer's group, as they are now."""
        return self._optimizer.param_groups[self._group_of[parameter]]

    def _alone(self, group: dict[str, Any], state: Any) -> Any:
        """The optimizer as it would be if it had this group and state only."""
        alone: Any = object.__new__(type(self._optimizer))
        alone.__dict__.update(self._optimizer.__dict__, param_groups=[group], state=state)
        return alone

    def _end_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """After ``optimizer.step()``, to which no gradients were left; it counts in its groups."""
        has_scaler = getattr(optimizer, "grad_scale", None) is not None  # while it calls
        if has_scaler and self._stepped and not self._was_scaled:
            raise RuntimeError(
                "the backward pass has stepped with gradients of a loss that a GradScaler scaled. "
                "Call stepping.backward(loss, scaler=scaler) in place of "
                "scaler.scale(loss).backward()."
            )
        self._stepped.clear()
        self._was_scaled = False

    def _look_for_replicas(self) -> None:
        if self._has_looked_for_replicas:
            return
        self._has_looked_for_replicas = True
        for obj in gc.get_objects():
            if issubclass(type(obj), DistributedDataParallel) and self.steps_any(obj.parameters()):
                raise RuntimeError(
                    "DistributedDataParallel averages gradients after they are complete: they "
                    "cannot be used before. Use fully_shard (FSDP2)."
                )

    def steps_any(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether it steps with any of them."""
        return any(parameter in self._group_of for parameter in parameters)


class _Scale:
    """A GradScaler's scale of one step, and whether any gradient is not finite."""

    def __init__(self, scaler: GradScaler) -> None:
        self._scaler = scaler
        scale = scaler._scale
        assert scale is not None  # the loss has been scaled
        self._inverse = scale.double().reciprocal().float()  # as GradScaler.unscale_ has it
        self._found: dict[torch.device, torch.Tensor] = {}

    def unscale(self, gradient: torch.Tensor) -> None:
        device = gradient.device
        if device not in self._found:
            self._found[device] = torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(
            [gradient], self._found[device], self._inverse.to(device)
        )

    def end_check(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tells the scaler, which updates its scale by it; whether all are finite."""
        state = self._scaler._per_optimizer_states[id(optimizer)]
        state["found_inf_per_device"] = {d: one.clone() for d, one in self._found.items()}
        state["stage"] = OptState.UNSCALED
        return not any(one.item() for one in self._found.values())


_all: weakref.WeakSet[SteppingInBackward] = weakref.WeakSet()


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "LBFGS cannot step within the backward pass: it computes the loss several times in a "
            "step, with all gradients at once"
        )
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if any(type(one).__name__ == "FlatParameter" for one in parameters):
        raise ValueError(
            "FullyShardedDataParallel reduces gradients after they are complete: they cannot be "
            "used before. Use fully_shard (FSDP2)."
        )
    if any(one.steps_any(parameters) for one in _all):
        raise ValueError("an optimizer steps with some of these parameters in backward passes")


def _weak(method: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """Calls the method as long as its object lives."""
    reference = weakref.WeakMethod(method)

    def call(parameter: torch.Tensor) -> None:
        alive = reference()
        if alive is not None:
            alive(parameter)

    return call


def _bare_step(kind: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """Without the hooks that PyTorch puts around it: they are for a step of all parameters."""
    step: Any = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def _refuse_clipping() -> None:
    """Clipping after the backward pass would find no gradients, and do nothing."""
    original = clip_grad._clip_grads_with_norm_
    if hasattr(original, "_lms_refuses"):
        return

    @wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> None:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if any(one.steps_any(parameters) for one in _all):
            raise RuntimeError(
                "the gradients' norm is known after the backward pass, which has stepped with them "
                "by then. Call `norm = stepping.backward(loss, max_norm=...)` in place of "
                "loss.backward() and of clip_grad_norm_."
            )
        original(parameters, *args, **kwargs)

    clip._lms_refuses = True  # type: ignore[attr-defined]
    clip_grad._clip_grads_with_norm_ = clip
