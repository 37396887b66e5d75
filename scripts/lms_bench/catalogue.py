"""What can be benchmarked: the workloads, and the rivals that compete in training them.

Standard library only, so that the command knows the names without PyTorch; what they stand for is
imported when it is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

FIRST_COUNTED = 3  # iterations before it fill caches, and show LMS what training does
ITERATIONS = 6  # of a rival that need not learn, unless the user says otherwise


@dataclass(frozen=True)
class Workload:
    """A model and how it is usually trained."""

    name: str
    module: str  # in workloads/
    function: str  # of the module; called with the batch and the device, returns a Training
    batch: int  # samples per iteration unless the user says otherwise
    description: str
    usual: bool = True  # part of a run that names no workload

    def build(self, batch: int, device: str) -> Any:
        """The Training, on a device."""
        module = importlib.import_module(f"lms_bench.workloads.{self.module}")
        return getattr(module, self.function)(batch, device)


@dataclass(frozen=True)
class Rival:
    """A way to train a model that is larger than the device."""

    name: str
    description: str
    module: str = ""  # in rivals/, with prepare(training); empty: the program is left as it is
    variables: dict[str, str] = field(default_factory=dict)  # of the environment
    packages: tuple[str, ...] = ()  # what it needs beyond PyTorch, pinned
    unlimited: bool = False  # the device never fills
    learning: int = 0  # iterations more before it is counted, in which it tries what is faster
    more: int = 0  # iterations more that count, since they are not alike
    usual: bool = True  # part of a run that names no rival
    eager_because: str = ""  # why it cannot train a compiled model; empty: it can
    shards: bool = False  # prepare() shards the training over several devices

    @property
    def uses_lms(self) -> bool:
        """Whether its figures depend on the engine."""
        return "PYTORCH_LMS" in self.variables

    def counted(self, iterations: int) -> range:
        """The iterations that count, from 0, where others run as many as are given."""
        first = FIRST_COUNTED + self.learning
        return range(first, first + iterations - FIRST_COUNTED + self.more)

    def prepare(self, training: Any) -> None:
        """Changes the training as a user of this rival would change the program."""
        if self.module:
            importlib.import_module(f"lms_bench.rivals.{self.module}").prepare(training)


WORKLOADS = (
    Workload("gpt-tiny", "gpt", "gpt_tiny", 8, "a GPT for tests of this command", usual=False),
    Workload(
        "bert-large",
        "bert",
        "bert_large",
        64,
        "BERT-large, 512 tokens, 80 of them masked, bf16 autocast, fused AdamW",
    ),
    Workload(
        "gpt2-xl", "gpt", "gpt2_xl", 8, "GPT-2 XL, 1,024 tokens, bf16 autocast, foreach AdamW"
    ),
    Workload(
        "llama-7b", "llama", "llama_7b", 4, "Llama 7B, 2,048 tokens, all in bf16, fused AdamW"
    ),
    Workload(
        "llama-7b-lora",
        "llama",
        "llama_7b_lora",
        8,
        "Llama 7B frozen in bf16, rank 16 on queries and values, 2,048 tokens, AdamW",
    ),
    Workload(
        "llama-70b",
        "llama",
        "llama_70b",
        1,
        "Llama 70B, 4,096 tokens, all in bf16, fused AdamW",
        usual=False,
    ),
    Workload(
        "llama-70b-lora",
        "llama",
        "llama_70b_lora",
        1,
        "Llama 70B frozen in bf16, rank 16 on queries and values, 4,096 tokens, AdamW",
        usual=False,
    ),
    Workload(
        "vit-l16", "vit", "vit_l16", 256, "ViT-L/16, 224 x 224 pixels, bf16 autocast, fused AdamW"
    ),
    Workload(
        "resnet152",
        "resnet",
        "resnet152",
        512,
        "ResNet-152, 224 x 224 pixels, bf16 autocast, SGD with momentum",
    ),
    Workload(
        "unet3d", "unet", "unet3d", 16, "3D U-Net, 128 x 128 x 128 voxels, bf16 autocast, SGD"
    ),
    Workload(
        "lstm",
        "lstm",
        "long_lstm",
        128,
        "LSTM of 4 layers, back-propagation truncated to 512 letters, fp32, clipped SGD",
    ),
    Workload(
        "dlrm",
        "dlrm",
        "dlrm",
        16384,
        "DLRM, 26 tables of 1,000,000 rows, fp32, SGD with dense gradients",
    ),
)

_STRIDES = "what backward needs comes back with other strides than a compiled backward expects"

_LMS = Rival("lms", "Large Model Support", variables={"PYTORCH_LMS": "1"}, learning=15, more=3)
RIVALS = (
    Rival("ideal", "no LMS, on a device of unlimited memory", unlimited=True),
    _LMS,
    replace(
        _LMS,
        name="lms_deterministic",
        description=_LMS.description + " with torch.backends.cudnn.deterministic",
        module="deterministic",
        usual=False,
    ),
    replace(
        _LMS,
        name="lms_stepping",
        description=_LMS.description + ", and the optimizer's step within the backward pass",
        module="stepping",
        usual=False,
    ),
    replace(
        _LMS,
        name="lms_on_host",
        description=_LMS.description + ", and the optimizer's step on the host",
        module="on_host",
        usual=False,
    ),
    Rival(
        "lms_copies",
        "Large Model Support that makes nothing again",
        variables={"PYTORCH_LMS": "1", "PYTORCH_LMS_CONF": "recompute:off"},
    ),
    Rival(
        "original",
        "Large Model Support as it was first: least recently used, on demand, host-blocking",
        variables={"PYTORCH_LMS": "1", "PYTORCH_LMS_CONF": "policy:original"},
    ),
    Rival(
        "recording",
        "Large Model Support that has nothing to try, where everything fits: for traces",
        variables={"PYTORCH_LMS": "1"},
        usual=False,
    ),
    Rival("alone", "the program as it is, which ends when memory is full", usual=False),
    Rival(
        "cpu_offload",
        "FSDP2's CPUOffloadPolicy, on several devices",
        "cpu_offload",
        usual=False,
        shards=True,
    ),
    Rival(
        "save_on_cpu",
        "torch.autograd.graph.save_on_cpu(pin_memory=True)",
        "save_on_cpu",
        eager_because=_STRIDES,
    ),
    Rival("checkpoint", "torch.utils.checkpoint around every block", "checkpoint"),
    Rival(
        "activation_offload",
        "activations to a page-locked pool on side streams, as torchtune does it",
        "activation_offload",
        eager_because=_STRIDES,
    ),
    Rival(
        "accelerate",
        "accelerate.cpu_offload of the weights",
        "accelerate_offload",
        packages=("accelerate==1.15.0",),
    ),
)


def named(what: str, choices: Iterable[Any], name: str) -> Any:
    """The workload or rival of a name.

    Raises:
        ValueError: there is none.
    """
    found = {choice.name: choice for choice in choices}
    if name not in found:
        raise ValueError(f"there is no {what} {name}: expected one of {', '.join(found)}")
    return found[name]
