"""Saves models larger than the limit in the ways of libraries, and loads them again.

Prints the bytes held after each way as JSON. Raises if a weight is not what it was.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import accelerate
import peft
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

LAYERS, SIZE = 24, 1024
held: dict[str, int] = {}


class Model(transformers.PreTrainedModel):
    """Layers as a model of `transformers`."""

    config_class = transformers.PretrainedConfig

    def __init__(self, config: transformers.PretrainedConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(LAYERS))
        self.post_init()


def saved(way: str, loaded: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compares what was loaded with what was saved, and notes what is held."""
    for name, weight in loaded.items():
        assert torch.equal(weight.cpu(), expected[name]), f"{way}: {name}"
    stats = torch.cuda.lms.stats()
    assert stats["lms.paged_out_bytes.current"] > 0, f"{way}: all of it fits"
    held[way] = stats["pinned_bytes.all.current"]


def files_in(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    return {name: weight for file in files for name, weight in load_file(file).items()}


def with_transformers(model: Model, folder: Path, expected: dict[str, Tensor]) -> None:
    for way, options in (("save_pretrained", {}), ("shards", {"max_shard_size": "20MB"})):
        model.save_pretrained(folder / way, **options)
        loaded = files_in(folder / way)
        assert loaded.keys() == expected.keys()
        saved(way, loaded, expected)
    assert len(list((folder / "shards").glob("*.safetensors"))) > 4
    again = Model.from_pretrained(folder / "shards").cuda()
    saved("from_pretrained", again.state_dict(), expected)
    settings = transformers.TrainingArguments(str(folder), report_to=[])
    transformers.Trainer(model, settings).save_model(str(folder / "trainer"))
    saved("Trainer.save_model", files_in(folder / "trainer"), expected)


def with_lms(model: Model, folder: Path, expected: dict[str, Tensor]) -> None:
    """As the libraries read it."""
    torch.cuda.lms.save(model, folder / "lms.safetensors")
    saved("lms.save", load_file(folder / "lms.safetensors"), expected)
    torch.cuda.lms.save(model, folder / "lms", max_shard_bytes=20 << 20)
    model.config.save_pretrained(folder / "lms")
    again = Model.from_pretrained(folder / "lms").cuda()
    saved("lms.save, shards", again.state_dict(), expected)


def trained_once(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer with state, after a step that changed nothing."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    for layer in model.layers:
        layer(torch.ones(2, SIZE, device="cuda")).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def momenta(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    states = {name: optimizer.state[weight] for name, weight in model.named_parameters()}
    return {name: state["momentum_buffer"] for name, state in states.items()}


def with_accelerate(model: Model, folder: Path, expected: dict[str, Tensor]) -> None:
    accelerator = accelerate.Accelerator()
    prepared, optimizer = accelerator.prepare(model, trained_once(model))
    accelerator.save_model(prepared, folder / "accelerate", max_shard_size="20MB")
    saved("Accelerator.save_model", files_in(folder / "accelerate"), expected)
    kept = {name: state.cpu() for name, state in momenta(model, optimizer).items()}
    accelerator.save_state(folder / "state")
    forget(model.state_dict() | momenta(model, optimizer))
    accelerator.load_state(folder / "state")
    saved("Accelerator.save_state", model.state_dict(), expected)
    saved("Accelerator.load_state", momenta(model, optimizer), kept)


def with_checkpoints(model: Model, folder: Path, expected: dict[str, Tensor]) -> None:
    """torch.distributed.checkpoint, in the only process of a group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    optimizer = trained_once(model)
    kept = {name: state.cpu() for name, state in momenta(model, optimizer).items()}
    for way, save in (("dcp.save", dcp.save), ("dcp.async_save", dcp.async_save)):
        weights, states = get_state_dict(model, optimizer)
        job = save({"weights": weights, "states": states}, checkpoint_id=folder / way)
        if way == "dcp.async_save":
            job.result()
        forget(model.state_dict() | momenta(model, optimizer))
        state = {"weights": weights, "states": states}
        dcp.load(state, checkpoint_id=folder / way)
        set_state_dict(
            model, optimizer, model_state_dict=state["weights"], optim_state_dict=state["states"]
        )
        saved(way, model.state_dict(), expected)
        saved(f"{way}, optimizer", momenta(model, optimizer), kept)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    saved("get_model_state_dict", get_model_state_dict(model, options=whole), expected)
    dist.destroy_process_group()


def with_peft(folder: Path) -> None:
    """Adapters that are larger than the limit themselves."""
    torch.manual_seed(2)
    base = Model(transformers.PretrainedConfig())
    names = [f"layers.{i}" for i in range(LAYERS)]
    settings = peft.LoraConfig(r=SIZE // 4, target_modules=names, init_lora_weights=False)
    model = peft.get_peft_model(base, settings).cuda()
    expected = {
        name: weight.cpu() for name, weight in peft.get_peft_model_state_dict(model).items()
    }
    model.save_pretrained(folder / "peft")
    saved("peft, save_pretrained", files_in(folder / "peft"), expected)
    model.load_adapter(folder / "peft", "again")
    loaded = peft.get_peft_model_state_dict(model, adapter_name="again")
    assert loaded.keys() == expected.keys()
    saved("peft, load_adapter", loaded, expected)


def forget(weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for weight in weights.values():
            weight.zero_()


def main(folder: Path) -> None:
    torch.manual_seed(1)
    model = Model(transformers.PretrainedConfig())
    expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.cuda()

    save_model(model, str(folder / "model"))
    forget(model.state_dict())
    load_model(model, folder / "model")
    saved("save_model", model.state_dict(), expected)

    save_file(model.state_dict(), folder / "file")
    saved("save_file", load_file(folder / "file"), expected)

    with_transformers(model, folder, expected)
    with_lms(model, folder, expected)
    with_accelerate(model, folder, expected)
    with_checkpoints(model, folder, expected)
    with_peft(folder)

    model.layers[5].weight = model.layers[3].weight
    expected["layers.5.weight"] = expected["layers.3.weight"]
    save_model(model, str(folder / "tied"))
    load_model(model, folder / "tied")
    saved("tied", model.state_dict(), expected)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
    print(json.dumps(held))
