"""Reports of programs that train something, and what is on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.child import Finished
from support.device import Device

LMS = {"PYTORCH_LMS": "1"}
CARD = {"kernels": "timed", "card": "A100-PCIe-40GB", "capacity": "2G"}

# Trains something that needs twice the memory: it copies, and makes bytes again.
TRAINING = """
import sys, torch
from torch import nn

class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.act, self.drop = nn.LayerNorm(size), nn.GELU(), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x):
        return x + self.down(self.drop(self.act(self.up(self.norm(x)))))

def train(size, rows, blocks=8):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(size) for _ in range(blocks))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.ones(rows, size, device="cuda")
    def step():
        torch.cuda.lms.step()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss
    return model, step
"""


def run(device: Device, code: str, *arguments: Any, **settings: Any) -> Finished:
    settings = {"capacity": "64M"} | settings
    env = {**LMS, **settings.pop("env", {})}
    if not device.simulated:
        env["PYTORCH_LMS_LIMIT"] = settings["capacity"]
    return device.run("-c", code, *arguments, env=env, **settings)


def done(device: Device, code: str, *arguments: Any, **settings: Any) -> str:
    finished = run(device, code, *arguments, **settings)
    assert finished.status == 0, finished.stderr
    return finished.stdout


def events(path: Path) -> list[dict[str, Any]]:
    """The slices of a file for Perfetto, each with its lane."""
    rows = json.loads(path.read_text())["traceEvents"]
    lanes = {row["tid"]: row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    return [row | {"lane": lanes[row["tid"]]} for row in rows if row["ph"] == "X"]


def on(lane: str, path: Path) -> list[dict[str, Any]]:
    return [event for event in events(path) if event["lane"] == lane]


def took(lane: str, path: Path) -> float:
    """Milliseconds."""
    return sum(event["dur"] for event in on(lane, path)) / 1000
