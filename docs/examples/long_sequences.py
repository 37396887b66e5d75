"""Train a GPT-2 on long sequences with accelerate, and save it with safetensors.

    python long_sequences.py --length 65536

Activations grow with the length: they are what leaves the device. The tokens are random.
"""

from __future__ import annotations

import argparse

import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import set_seed

WORDS = 1024


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--length", type=int, default=1024, help="tokens in a sequence")
    parser.add_argument("--layers", type=int, default=4, help="how many")
    parser.add_argument("--width", type=int, default=256, help="numbers per token")
    parser.add_argument("--steps", type=int, default=5, help="how many, of two sequences each")
    parser.add_argument("--save", metavar="FOLDER", help="write the model there")
    parser.add_argument("--lms", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    torch.cuda.set_enabled_lms(args.lms)
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=args.length, n_embd=args.width, n_layer=args.layers,
        n_head=max(args.width // 64, 1),
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    for i in range(2 * args.steps):
        with accelerator.accumulate(model):
            tokens = torch.randint(WORDS, (1, args.length), device=accelerator.device)
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        print(f"sequence {i + 1} loss {loss.item():.4f}", flush=True)
    if args.save:
        accelerator.save_model(model, args.save)
    print(f"paged in {torch.cuda.lms.stats()['lms.page_in.bytes'] >> 20} MiB")


if __name__ == "__main__":
    main()
