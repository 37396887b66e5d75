# %% [markdown]
# # An LSTM on long sequences
#
# A language model of LSTM layers learns to continue a text, letter by letter, in plain PyTorch. To
# see far back, gradients have to flow through the whole sequence, so all activations of all its
# letters are kept until then. That is why such models are mostly trained on short pieces. The text
# is made up: each letter repeats the one 32 before it.

# %%
import argparse

import torch
from torch import Tensor, nn

# %% [markdown]
# The sizes are those of a first try, which needs no card. Raise them here, or run the file with
# options: `python lstm.py --length 4096 --width 2048`.

# %%
parser = argparse.ArgumentParser(description="Train an LSTM on long sequences.")
parser.add_argument("--length", type=int, default=64, help="letters in a sequence")
parser.add_argument("--width", type=int, default=128, help="numbers per letter")
parser.add_argument("--layers", type=int, default=4, help="how many")
parser.add_argument("--batch-size", type=int, default=32, help="sequences in a step")
parser.add_argument("--steps", type=int, default=5, help="how many")
parser.add_argument("--lms", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args([] if "get_ipython" in globals() else None)

# %% [markdown]
# One line turns LMS on. Nothing else knows of it.

# %%
torch.cuda.set_enabled_lms(args.lms)

# %% [markdown]
# What one operator uses must fit on the card together. With cuDNN `nn.LSTM(num_layers=4)` is
# one operator for all layers. Four of one layer are four, and between them the rest may leave.

# %%
LETTERS = 256
PERIOD = 32


class Reader(nn.Module):
    """Guesses each next letter."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.layers = nn.ModuleList(nn.LSTM(width, width) for _ in range(layers))
        self.guess = nn.Linear(width, LETTERS)

    def forward(self, text: Tensor) -> Tensor:
        """Scores of all letters; the first dimension is the place in the text."""
        x = self.letters(text)
        for layer in self.layers:
            x = x + layer(x)[0]
        return self.guess(x)


# %%
torch.manual_seed(0)
model = Reader(args.width, args.layers).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
places = torch.arange(args.length + 1, device="cuda") % PERIOD
for step in range(1, args.steps + 1):
    text = torch.randint(LETTERS, (PERIOD, args.batch_size), device="cuda")[places]
    scores = model(text[:-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
print(f"paged in {torch.cuda.lms.stats()['lms.page_in.bytes'] >> 20} MiB")

# %% [markdown]
# ## On which card?
#
# `lms plan` tries it on cards that are not there, here with sequences of 1,024 letters. There
# these layers run by PyTorch's own kernels, a letter at a time, and not by those of cuDNN, so a
# real card is faster:

# %%
# !../../scripts/lms plan lstm.py --length 1024 --width 2048 --batch-size 128 --steps 30

# %% [markdown]
# ## What to expect
#
# In float32, as here, an A100 computes more slowly than an RTX 4090, and for so long that nearly
# all copies hide behind it. An RTX 4090 waits for copies a fifth of the time. An H100 has memory
# enough. What LMS moves is what each letter left in each layer: it leaves while the forward pass
# goes on, and comes back in reverse. Nothing is computed again, since no step of a thousand small
# ones is worth it.
#
# With the kernels of cuDNN a real card computes faster, so less of the copying hides. No card has
# measured that yet.
