"""What another process does with memory and an event that are shared with it."""

from __future__ import annotations

from typing import Any

import torch


def follow(received: Any, sent: Any) -> None:
    """Reads a tensor before and after an event, and writes to it."""
    x = received.get(timeout=60)
    sent.put("there")
    handle = received.get(timeout=60)
    event = torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), handle)
    early = x.cpu()
    torch.cuda.current_stream().wait_event(event)
    late = x.clone()
    x[0] = 7
    torch.cuda.synchronize()
    assert event.query()
    sent.put((early.tolist(), late.tolist()))
