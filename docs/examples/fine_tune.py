# %% [markdown]
# # Fine-tune a Llama
#
# LoRA with the `Trainer` of `transformers` and adapters of `peft`. Only the adapters learn, so
# gradients and optimizer state are small. The frozen weights fit most cards, and the activations of
# long sequences do not. The model has random weights and is taught the numbers in order, so that
# nothing has to be downloaded; for a real one take `AutoModelForCausalLM.from_pretrained` and a
# dataset.

# %%
import argparse
import tempfile

import peft
import torch
import transformers

# %% [markdown]
# The sizes are those of a first try, which needs no card. Raise them here, or run the file with
# options: `python fine_tune.py --layers 32 --width 4096 --length 8192`.

# %%
parser = argparse.ArgumentParser(description="Fine-tune a Llama with LoRA.")
parser.add_argument("--layers", type=int, default=4, help="how many")
parser.add_argument("--width", type=int, default=256, help="numbers per token")
parser.add_argument("--length", type=int, default=256, help="tokens in a sequence")
parser.add_argument("--batch-size", type=int, default=4, help="sequences in a step")
parser.add_argument("--steps", type=int, default=5, help="how many")
parser.add_argument("--lms", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args([] if "get_ipython" in globals() else None)

# %% [markdown]
# One line turns LMS on. Nothing else knows of it.

# %%
torch.cuda.set_enabled_lms(args.lms)

# %%
WORDS = 1024

transformers.set_seed(0)
config = transformers.LlamaConfig(
    vocab_size=WORDS, hidden_size=args.width, intermediate_size=4 * args.width,
    num_hidden_layers=args.layers, num_attention_heads=max(args.width // 128, 1),
    max_position_embeddings=args.length,
)  # fmt: skip
adapters = peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"])
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model = peft.get_peft_model(model, adapters)

# %%
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

# %% [markdown]
# ## On which card?
#
# `lms plan` tries it on cards that are not there, here with 8.6 billion parameters and
# sequences of 2,048 tokens:

# %%
# !../../scripts/lms plan --with transformers --with peft --with accelerate \
#     fine_tune.py --layers 32 --width 4096 --length 2048 --steps 30

# %% [markdown]
# ## What to expect
#
# The frozen weights take 16 GiB, the adapters next to nothing, and the rest is activations. An
# RTX 4090 computes for so long that all copies hide behind it: LMS costs nothing there. An A100
# computes twice as fast over a link that is no faster, and waits for copies a sixth of the time.
# On an H100 everything fits, so nothing moves. The host needs about as much memory as the card
# lacks.
#
# Frozen weights are copied to the card and never back. If memory is short on the host, take a
# smaller batch first.
