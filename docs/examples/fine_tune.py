"""Fine-tune a Llama with LoRA: transformers' Trainer, and adapters of peft.

    python fine_tune.py --layers 32 --width 4096 --length 8192 --lms

The model has random weights and is taught the numbers in order, so that nothing has to be
downloaded; for a real one take AutoModelForCausalLM.from_pretrained and a dataset.
"""

from __future__ import annotations

import argparse
import tempfile

import peft
import torch
import transformers

WORDS = 1024


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--layers", type=int, default=4, help="how many")
    parser.add_argument("--width", type=int, default=256, help="numbers per token")
    parser.add_argument("--length", type=int, default=256, help="tokens in a sequence")
    parser.add_argument("--batch-size", type=int, default=4, help="sequences in a step")
    parser.add_argument("--steps", type=int, default=5, help="how many")
    parser.add_argument("--lms", action="store_true", help="with Large Model Support")
    args = parser.parse_args()
    torch.cuda.set_enabled_lms(args.lms)
    transformers.set_seed(0)
    model = adapted(args.layers, args.width, args.length)
    sequence = torch.arange(args.length) % WORDS
    data = [{"input_ids": sequence, "labels": sequence}] * (args.steps * args.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            folder, max_steps=args.steps, per_device_train_batch_size=args.batch_size,
            learning_rate=1e-2, logging_steps=1, save_strategy="no", report_to=[],
            disable_tqdm=True,
        )  # fmt: skip
        transformers.Trainer(model, settings, train_dataset=data).train()
    print(f"paged in {torch.cuda.lms.stats()['lms.page_in.bytes'] >> 20} MiB")


def adapted(layers: int, width: int, length: int) -> peft.PeftModel:
    """Of the model only the adapters learn."""
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=max(width // 128, 1), max_position_embeddings=length,
    )  # fmt: skip
    adapters = peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), adapters)


if __name__ == "__main__":
    main()
