"""The timing mode: whole programs, at real scale, with the same numbers every time."""

from __future__ import annotations

import pytest
import simcuda
from simcuda import cards

CARD = "A100-SXM-40GB"

TRAINING = """
import models
losses = models.train(models.make("gpt"), "foreach", "cuda", autocast=torch.bfloat16)
assert set(losses) == {0.0}
import json
print(json.dumps([simcuda.virtual_time(), simcuda.device_time(), simcuda.busy().compute]))
"""


def test_the_same_program_takes_the_same_time(timed, tmp_path):
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    numbers = [timed(TRAINING, timeline=path) for path in paths]
    assert numbers[0] == numbers[1]
    assert min(numbers[0]) > 0
    assert paths[0].read_text() == paths[1].read_text()
    # A card with half the speed is another program's time.
    assert timed(TRAINING, card="V100-PCIe-32GB") != numbers[0]


@pytest.mark.parametrize(
    "model, card",
    [
        ("cnn", "V100-PCIe-32GB"),  # no TF32, no bfloat16
        ("lstm", "RTX-4090-24GB"),
        ("bags", "H200-141GB"),
        ("gpt", "GH200-96GB"),
    ],
)
def test_models_of_every_kind_train_on_every_kind_of_card(timed, model, card):
    timed(TRAINING.replace('"gpt"', repr(model)), card=card)


def test_gradients_of_convolutions_are_laid_out_as_pytorch_expects(timed):
    """Compiled programs check it."""
    timed("""
from torch._subclasses import FakeTensorMode
def strides(*tensors):
    last = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    return [t.stride() for t in torch.ops.aten.convolution_backward(*tensors, *last)[:2]]
shapes = (2, 16, 30, 30), (2, 8, 32, 32), (16, 8, 3, 3)
for formats in (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1):
    tensors = [
        torch.empty(shape, device="cuda").to(memory_format=torch.channels_last if last
                                             else torch.contiguous_format)
        for shape, last in zip(shapes, formats)
    ]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        expected = strides(*map(mode.from_tensor, tensors))
    assert strides(*tensors) == expected, formats
""")


# GPT-2 XL: 1.5 billion parameters; forward, backward, AdamW.
LARGE = """
import json, os, resource
from lms_bench.workloads.transformer import Block
from torch import nn
from torch.nn import functional as F

lms = "lms" in sys.argv
if "one-core" in sys.argv:  # threads that make host memory are late there
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if lms and not hasattr(torch.cuda, "set_enabled_lms"):
    raise SystemExit(0)
if lms:
    os.environ["PYTORCH_LMS_HOST_LEDGER"] = "none"  # on a server, not on the machine at hand
    torch.cuda.set_enabled_lms(True)
    torch.cuda.lms.set_host_limit(200 << 30)
with torch.device("cuda"):
    words, head = nn.Embedding(50257, 1600), nn.Linear(1600, 50257, bias=False)
    blocks = nn.Sequential(*[Block(1600, 25, 0.0, causal=True, norm_first=True) for _ in range(48)])
    tokens = torch.randint(50257, (2, 1024))
parameters = [*words.parameters(), *blocks.parameters(), *head.parameters()]
assert sum(p.numel() for p in parameters) > 1.5e9
optimizer = torch.optim.AdamW(parameters)
times = []
for step in range(2):
    torch.cuda.synchronize()
    begin = simcuda.virtual_time()
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(head(blocks(words(tokens))).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    times.append(simcuda.virtual_time() - begin)
stats = simcuda.stats()
print(json.dumps({
    "times": times,
    "host_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    "device_memory": stats.peak_device_bytes,
    "moved": [stats.host_to_device_bytes, stats.device_to_host_bytes],
    "paged_out": torch.cuda.memory_stats()["lms.page_out.bytes"] if lms else 0,
}))
"""


def test_a_model_of_real_size_needs_little_host_memory(timed):
    found = timed(LARGE, card="A100-SXM-80GB")
    assert found["device_memory"] > 30e9
    assert found["host_memory"] < 2e9
    assert found["moved"] == [0, 0]
    # 6 FLOPs per parameter and token, at most at the card's full rate; and not ten times that.
    least = 6 * 1.5e9 * 2048 / 312e12 * 1e9
    assert least < found["times"][1] < 10 * least


def test_the_same_model_pages_on_a_smaller_card(timed):
    smaller = {"card": "A100-SXM-80GB", "capacity": "16G"}
    found = timed(LARGE, arguments=("lms",), **smaller)
    again = timed(LARGE, arguments=("lms", "one-core"), **smaller)
    if found is None:
        pytest.skip("this torch has no Large Model Support")
    assert found["times"] == again["times"] and found["moved"] == again["moved"]
    assert found["device_memory"] <= 16 << 30
    assert found["host_memory"] < 2e9
    assert found["moved"][1] == found["paged_out"] > 10e9


def test_what_is_read_from_the_device_is_zero(timed):
    timed("""
x = torch.ones(1000, 1000, device="cuda")
assert x.sum().item() == 0 and not x.any().item() and torch.equal(x, x + 1)
dirty = torch.ones(1000, 1000)
dirty.copy_(x)
assert dirty.eq(0).all()
part = torch.ones(5000)
part[3:4000].copy_(x.flatten()[3:4000])
assert part.sum() == 5000 - 3997
assert x.nonzero().shape == (0, 2) and x[x > 0].shape == (0,) and x.unique().shape == (1,)
assert torch.bincount(torch.ones(7, dtype=torch.long, device="cuda"), minlength=3).shape == (3,)
state = torch.get_rng_state()
torch.bernoulli(x), torch.randperm(9, device="cuda"), torch.multinomial(x, 3)
assert torch.get_rng_state().equal(state)  # the CPU's numbers are the program's
""")


def test_memory_is_address_space(timed):
    timed("""
import resource
on_the_device = on_device(30 << 10)
page_locked = [locked(32 << 10) for _ in range(4)]
pageable = torch.empty(6 << 30, dtype=torch.uint8)
pageable.copy_(on_the_device[: 6 << 30])
assert pageable[-1] == 0
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20  # KiB
try:
    on_device(20 << 10)
except torch.cuda.OutOfMemoryError:
    pass
else:
    raise AssertionError("50 GiB in 40")
assert page_locked[3][12345] == 0
""")


def test_what_cannot_be_told_is_an_error_that_names_the_operator(timed):
    timed("""
bins = torch.empty(1 << 28, device="cuda")
try:
    torch.histc(bins, out=torch.empty(1 << 28, device="cuda"))
except NotImplementedError as error:
    assert "aten::histc" in str(error), error
""")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"kernels": "timed"}, "needs a card: one of V100-PCIe-32GB, "),
        ({"kernels": "timed", "card": "Voodoo"}, "card='Voodoo' is not known"),
        ({"kernels": "async", "card": CARD}, 'need kernels="timed"'),
        ({"kernels": "timed", "card": CARD, "schedule": "late"}, "mean nothing"),
        ({"timeline": "file"}, 'need kernels="timed"'),
        ({"driver_lock": True}, 'need kernels="timed"'),
    ],
)
def test_settings_that_do_not_fit_are_refused(build_dir, settings, message):
    with pytest.raises(simcuda.SimulationError, match=message):
        simcuda.environment(build_dir, **settings)


def test_every_card_says_where_its_numbers_come_from(build_dir):
    assert len(cards.names()) >= 7
    for name in cards.names():
        card = cards.card(name)
        assert len(card["source"]) > 20, name
        link = card["page_locked"]
        assert max(link["h2d"], link["d2h"]) < link["both"] <= link["h2d"] + link["d2h"], name
        environment = simcuda.environment(build_dir, kernels="timed", card=name, base={})
        assert int(environment["SIMCUDA_CAPACITY"]) == card["memory"] > 20e9, name


def test_there_is_no_virtual_time_in_other_modes(simulate):
    simulate("""
        import simcuda
        for ask in simcuda.virtual_time, simcuda.device_time, simcuda.busy:
            try:
                ask()
            except simcuda.SimulationError as error:
                assert "timed" in str(error)
            else:
                raise AssertionError(ask)
        """)
