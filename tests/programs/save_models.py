"""Saves models larger than the limit in the ways of libraries, and loads them again.

Prints the bytes held after each way as JSON. Raises if a weight is not what it was.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

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


def main(folder: Path) -> None:
    torch.manual_seed(1)
    model = Model(transformers.PretrainedConfig())
    expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.cuda()

    save_model(model, str(folder / "model"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    load_model(model, folder / "model")
    saved("save_model", model.state_dict(), expected)

    save_file(model.state_dict(), folder / "file")
    saved("save_file", load_file(folder / "file"), expected)

    for way, options in (("save_pretrained", {}), ("shards", {"max_shard_size": "20MB"})):
        model.save_pretrained(folder / way, **options)
        loaded = files_in(folder / way)
        assert loaded.keys() == expected.keys()
        saved(way, loaded, expected)
    assert len(list((folder / "shards").glob("*.safetensors"))) > 4
    again = Model.from_pretrained(folder / "shards").cuda()
    saved("from_pretrained", again.state_dict(), expected)
    del again

    settings = transformers.TrainingArguments(str(folder), report_to=[])
    transformers.Trainer(model, settings).save_model(str(folder / "trainer"))
    saved("Trainer.save_model", files_in(folder / "trainer"), expected)

    model.layers[5].weight = model.layers[3].weight
    expected["layers.5.weight"] = expected["layers.3.weight"]
    save_model(model, str(folder / "tied"))
    load_model(model, folder / "tied")
    saved("tied", model.state_dict(), expected)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
    print(json.dumps(held))
