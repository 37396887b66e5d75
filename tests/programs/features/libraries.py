"""Libraries that people train with, unchanged: small models with random weights."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor, nn

from features.common import Result, Section, numbers

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import accelerate
import lightning
import peft
import safetensors.torch
import torchvision
import transformers
from torchao.optim import AdamW8bit

SECTION = feature = Section("Libraries")
WORDS = 512
transformers.logging.set_verbosity_error()


def words(rows: int = 4, length: int = 64, seed: int = 1) -> Tensor:
    """Tokens of sentences."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(WORDS, (rows, length), generator=generator).cuda()


def language_model(kind: str) -> nn.Module:
    """A small one, on the device; its weights are the same every time."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 1024, "vocab_size": WORDS}
    if kind == "gpt2":
        config = transformers.GPT2Config(n_embd=256, n_layer=3, n_head=4, vocab_size=WORDS)
        model = transformers.GPT2LMHeadModel(config)
    elif kind == "bert":
        model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    elif kind == "llama":
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**sizes, num_key_value_heads=2)
        )
    else:
        config = transformers.T5Config(
            d_model=256, d_ff=1024, num_layers=2, num_heads=4, d_kv=64, vocab_size=WORDS,
            decoder_start_token_id=0, pad_token_id=0,
        )  # fmt: skip
        model = transformers.T5ForConditionalGeneration(config)
    return model.cuda()


def train(model: nn.Module, optimizer: Any, batches: list[dict[str, Tensor]]) -> Any:
    """A step per batch; yields in between, returns the losses."""
    losses = []
    for batch in batches:
        loss = model(**batch).loss
        yield
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def sentences() -> list[dict[str, Tensor]]:
    """Two batches for a language model, which is to repeat them."""
    return [{"input_ids": words(seed=i), "labels": words(seed=i)} for i in range(2)]


def train_language_model(kind: str) -> Generator[None, None, Result]:
    model = language_model(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = yield from train(model, optimizer, sentences())
    return {"losses": losses, "weights": model.state_dict()}


@feature("`transformers`: GPT-2")
def gpt2() -> Generator[None, None, Result]:
    return (yield from train_language_model("gpt2"))


@feature("`transformers`: BERT")
def bert() -> Generator[None, None, Result]:
    return (yield from train_language_model("bert"))


@feature("`transformers`: Llama")
def llama() -> Generator[None, None, Result]:
    return (yield from train_language_model("llama"))


@feature("`transformers`: T5")
def t5() -> Generator[None, None, Result]:
    return (yield from train_language_model("t5"))


@feature('`transformers`: `from_pretrained(device_map="cuda")`')
def loading() -> Generator[None, None, Result]:
    with tempfile.TemporaryDirectory() as folder:
        language_model("llama").save_pretrained(folder)
        yield
        model = transformers.LlamaForCausalLM.from_pretrained(folder, device_map="cuda")
    yield
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = yield from train(model, optimizer, sentences())
    return {"losses": losses, "weights": model.state_dict()}


@feature("`transformers`: generation with a cache of keys and values")
def generation() -> Generator[None, None, Result]:
    model = language_model("llama").eval()
    yield
    greedy = model.generate(words(2, 16), max_new_tokens=12, do_sample=False, pad_token_id=0)
    yield
    return {"greedy": greedy}


@feature("`transformers`: ViT")
def vit() -> Generator[None, None, Result]:
    torch.manual_seed(1)
    config = transformers.ViTConfig(
        hidden_size=256, num_hidden_layers=3, num_attention_heads=4, intermediate_size=1024,
        image_size=64, patch_size=8, num_labels=10,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [
        {"pixel_values": numbers(4, 3, 64, 64, seed=i), "labels": torch.arange(4).cuda()}
        for i in range(2)
    ]
    losses = yield from train(model, optimizer, batches)
    return {"losses": losses, "weights": model.state_dict()}


@feature("`transformers.Trainer`")
def trainer() -> Generator[None, None, Result]:
    model = language_model("gpt2")
    data = [{"input_ids": row, "labels": row} for row in words(24).cpu()]
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            folder, per_device_train_batch_size=4, max_steps=4, report_to=[], save_steps=2,
            disable_tqdm=True, logging_strategy="no", gradient_checkpointing=True,
        )  # fmt: skip
        yield
        ended = transformers.Trainer(model, settings, train_dataset=data).train()
    yield
    return {"loss": ended.training_loss, "weights": model.state_dict()}


@feature("`accelerate`")
def accelerated() -> Generator[None, None, Result]:
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
    model = language_model("gpt2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    for i in range(4):
        with accelerator.accumulate(model):
            loss = model(input_ids=words(seed=i), labels=words(seed=i)).loss
            yield
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return {"loss": loss, "weights": model.state_dict()}


@feature("`peft`: LoRA, merged at the end")
def lora() -> Generator[None, None, Result]:
    model = language_model("llama")
    torch.manual_seed(2)
    adapters = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    model = peft.get_peft_model(model, adapters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = yield from train(model, optimizer, sentences())
    return {"losses": losses, "weights": model.merge_and_unload().state_dict()}


@feature("`torchvision`: ResNet-152")
def resnet152() -> Generator[None, None, Result]:
    torch.manual_seed(1)
    model = torchvision.models.resnet152(num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss = nn.functional.cross_entropy(model(numbers(2, 3, 64, 64)), torch.arange(2).cuda())
    yield
    loss.backward()
    yield
    optimizer.step()
    return {"loss": loss, "weights": model.state_dict()}


@feature("`torchvision`: segmentation")
def segmentation() -> Generator[None, None, Result]:
    torch.manual_seed(1)
    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    maps = model(numbers(2, 3, 64, 64))["out"]
    yield
    loss = nn.functional.cross_entropy(maps, torch.zeros(2, 64, 64, dtype=torch.long).cuda())
    loss.backward()
    yield
    optimizer.step()
    return {"loss": loss, "weights": model.state_dict()}


@feature("`torchvision`: detection", gpu="its kernels are not simulated")
def detection() -> Generator[None, None, Result]:
    torch.manual_seed(1)
    model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3
    ).cuda()
    box = {
        "boxes": torch.tensor([[10.0, 10, 60, 60]]).cuda(),
        "labels": torch.ones(1).long().cuda(),
    }
    losses = model([numbers(3, 128, 128)], [box])
    yield
    sum(losses.values()).backward()
    return {"losses": list(losses.values())}


class Lit(lightning.LightningModule):
    """What `lightning` trains."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 10))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


@feature("`lightning.Trainer`")
def lightning_trainer() -> Generator[None, None, Result]:
    model = Lit()
    data = torch.utils.data.TensorDataset(numbers(256, 512).cpu(), torch.arange(256) % 10)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cuda", devices=1, max_epochs=2, precision="bf16-mixed", logger=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        )  # fmt: skip
        yield
        trainer.fit(model, torch.utils.data.DataLoader(data, 64))
    yield
    return {"weights": model.state_dict()}


@feature("`torchao`: 8-bit AdamW", gpu="not tried on the simulated device yet")
def eight_bit_optimizer() -> Generator[None, None, Result]:
    model = language_model("gpt2")
    optimizer = AdamW8bit(model.parameters(), lr=1e-3)
    losses = yield from train(model, optimizer, sentences())
    return {"losses": losses, "weights": model.state_dict()}


@feature("`safetensors`")
def safe_files() -> Generator[None, None, Result]:
    model = language_model("bert")
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.safetensors"
        yield
        safetensors.torch.save_file(state, path)
        yield
        loaded = [safetensors.torch.load_file(path, device=place) for place in ("cpu", "cuda")]
    return {"loaded": loaded}
