"""Kernels that Triton compiles, for Inductor and for users, on the simulated device."""

from __future__ import annotations

import pytest
from support.triton import needs_headers

pytestmark = needs_headers
KERNELS = pytest.mark.parametrize("kernels", ["inline", "async"])


@KERNELS
def test_inductor_computes_what_eager_does(simulate, kernels):
    simulate(
        """
        import torch
        torch.manual_seed(0)

        def function(x, y, rows):
            z = torch.nn.functional.gelu(x @ y) + torch.special.erf(x)
            z = torch.nn.functional.layer_norm(z, z.shape[-1:])
            return z.softmax(-1), z.bfloat16(), z.sum(0), z[rows], (z > 0).sum(), z.tanh().argmax(1)

        x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
        rows = torch.arange(0, 64, 3, device="cuda")
        for got, wanted in zip(torch.compile(function)(x, y, rows), function(x, y, rows)):
            torch.testing.assert_close(got, wanted)
        """,
        kernels=kernels,
    )


@KERNELS
def test_a_users_kernel(simulate, kernels):
    """Numbers of all kinds, functions that call functions, and what does not fill a block."""
    simulate(
        """
        import torch
        from triton_kernels_of_tests import add_scaled
        for dtype in (torch.float32, torch.float16, torch.int32):
            x = torch.arange(1000, device="cuda").to(dtype)
            y, out = x.flip(0).clone(), torch.zeros(1001, device="cuda", dtype=dtype)
            factor = 3 if dtype == torch.int32 else 0.5
            add_scaled[(4,)](x, y, out, factor, 1000, block=256)
            assert torch.equal(out[:1000], x + y * factor), dtype
            assert out[1000] == 0
        """,
        kernels=kernels,
    )


def test_a_launch_waits_its_turn(simulate):
    """Work of its stream that is still to run, and work that is queued later."""
    simulate(
        """
        import torch
        from triton_kernels_of_tests import add_scaled
        x, out = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        x.mul_(2)
        add_scaled[(4,)](x, x, out, 1.0, 1000, block=256)
        x.zero_()
        assert out.eq(4).all()
        """,
        kernels="async",
        schedule="late",
    )


def test_a_wait_with_pythons_lock(simulate):
    """PyTorch calls operators with it from its Python dispatcher, and kernels need it to run."""
    simulate(
        """
        import torch
        from torch._dispatch.python import enable_python_dispatcher
        from triton_kernels_of_tests import add_scaled
        x, out = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        add_scaled[(4,)](x, x, out, 1.0, 1000, block=256)
        with enable_python_dispatcher():
            assert out[0].item() == 2
        """,
        kernels="async",
    )


def test_tuning_computes_nothing_and_is_repeatable(simulate):
    simulate(
        """
        import torch
        from triton_kernels_of_tests import row_sums
        x, out = torch.ones(3, 1000, device="cuda"), torch.full((3,), 7.0, device="cuda")
        row_sums[(3,)](x, out, 1000)
        assert out.eq(1000).all()
        # All of them launch as many programs, so it is the first.
        assert row_sums.best_config.kwargs == {"block": 64}, row_sums.best_config
        """
    )


def test_a_graph_outlives_the_program(simulate):
    simulate(
        """
        import sys, torch
        from triton_kernels_of_tests import add_scaled
        x, out = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
        add_scaled[(4,)](x, x, out, 1.0, 1000, block=256)
        sys.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(sys.graph):
            add_scaled[(4,)](x, x, out, 2.0, 1000, block=256)
        sys.graph.replay()
        assert out.eq(3).all()
        """,
        kernels="async",
    )


def test_addresses_must_be_the_devices(simulate):
    done = simulate(
        """
        import torch
        from triton_kernels_of_tests import add_scaled
        x = torch.ones(1000, device="cuda")
        try:
            add_scaled[(4,)](torch.ones(1000), x, x, 1.0, 1000, block=256)
        except ValueError as error:
            print(error)
        """
    )
    assert "cannot be accessed from Triton" in done.stdout


# Tools for launches in virtual time.
LAUNCHES = """
import json
from triton_kernels_of_tests import add_scaled, row_sums
bandwidth = card["bandwidth"] * card["bandwidth_efficiency"]

def on_device(*sizes, dtype=torch.float32):
    return torch.empty(sizes, dtype=dtype, device="cuda")

def takes(work):
    "Names of the kernels that are launched, and the bytes that their times stand for."
    torch.cuda.synchronize()
    path = f"{sys.argv[1]}/timeline"
    simcuda.timeline(path)
    work()
    torch.cuda.synchronize()
    simcuda.timeline(None)
    with open(path) as lines:
        rows = [json.loads(line) for line in lines]
    times = [(row["end"] - row["start"] - card["launch_ns"]) * bandwidth / 1e9 for row in rows]
    return [row["name"] for row in rows], times

def check(work, *expected):
    names, found = takes(work)
    assert all(name.startswith("triton::") for name in names), names
    assert len(found) == len(expected), (names, found)
    for name, bytes, wanted in zip(names, found, expected):
        assert abs(bytes - wanted) <= bandwidth / 1e9, (name, bytes, wanted)  # a nanosecond
"""


def test_a_users_launch_takes_the_time_of_its_tensors(timed, tmp_path):
    timed(
        LAUNCHES
        + """
def add(x, y, out):
    add_scaled[(x.numel() // 1024,)](x, y, out, 0.5, x.numel(), block=1024)

size = 1 << 24
x, y, out = (on_device(size) for _ in range(3))
check(lambda: add(x, y, out), 12 * size)
check(lambda: add(x[: size // 2], y[: size // 2], out[: size // 2]), 6 * size)
check(lambda: add(x[:4096].expand(1024, 4096), y, out), 8 * size + 4 * 4096)
check(lambda: add(x[::2], y[::2], out), 8 * size)
check(lambda: row_sums[(4096,)](x.view(4096, -1), out[:4096], 4096), 4 * (size + 4096))  # tuned
# The host's time is an operator's.
begin = simcuda.virtual_time()
add(x, y, out)
launch = simcuda.virtual_time() - begin
begin = simcuda.virtual_time()
torch.add(x, y, out=out)
assert abs(launch - (simcuda.virtual_time() - begin)) <= 100, launch
""",
        arguments=(str(tmp_path),),
    )


def test_inductors_launches_take_the_time_of_what_they_touch(timed, tmp_path):
    timed(
        LAUNCHES
        + """
def compiled(function, *arguments, **options):
    "Compiled and called once."
    function = torch.compile(function, **options)
    function(*arguments)
    return function

size = 1 << 12
x, bias = on_device(size, size), on_device(size)
norm = compiled(lambda x, bias: torch.nn.functional.gelu(x).add(bias).softmax(1), x, bias)
check(lambda: norm(x, bias), 8 * size**2 + 4 * size)
in_place = compiled(lambda x: x.mul_(2), x)
check(lambda: in_place(x), 8 * size**2)
half = compiled(lambda x: x[: x.shape[0] // 2] + 1, x)
check(lambda: half(x), 4 * size**2)
table, rows = on_device(1_000_000, 64), torch.zeros(512, dtype=torch.long, device="cuda")
look_up = compiled(lambda table, rows: table[rows] + 1, table, rows)
check(lambda: look_up(table, rows), 2 * 512 * 64 * 4 + 512 * 8)  # not the whole table
# Compiled for one size, launched with another.
any_size = compiled(lambda x: x + 1, x, dynamic=True)
check(lambda: any_size(x), 8 * size**2)
check(lambda: any_size(on_device(2 * size, size)), 16 * size**2)
# It says nothing of kernels that go over lists.
lists = [on_device(size, size) for _ in range(3)], [on_device(size, size) for _ in range(3)]
add_all = compiled(lambda ones, others: torch._foreach_add_(ones, others), *lists)
check(lambda: add_all(*lists), 36 * size**2)
""",
        arguments=(str(tmp_path),),
    )


def test_inductors_products_take_the_time_of_their_arithmetic(timed, tmp_path):
    timed(
        LAUNCHES
        + """
from torch._inductor import config, select_algorithm
if not hasattr(select_algorithm.TritonTemplateKernel, "estimate_flops"):
    sys.exit()  # an older PyTorch: then it is a product that nobody counts
config.max_autotune_gemm, config.max_autotune_gemm_backends = True, "TRITON"
config.test_configs.max_mm_configs = 1
x, y = (on_device(2048, 2048, dtype=torch.bfloat16) for _ in range(2))
multiply = torch.compile(torch.mm)
multiply(x, y)
names, (found,) = takes(lambda: multiply(x, y))
seconds = 2 * 2048**3 / card["rates"]["bf16"] / card["compute_efficiency"]
assert names[0].startswith("triton::triton_") and abs(found / bandwidth - seconds) < 1e-9, found
""",
        arguments=(str(tmp_path),),
    )


def test_a_compiled_program_takes_the_same_time_again(timed, tmp_path):
    """Though the second one finds what the first has compiled, and could what it has chosen."""
    program = """
import json
def function(x, y):
    return x.add_(y.t()).softmax(1)
x, y = (torch.empty(1000, 1000, device="cuda") for _ in range(2))
function = torch.compile(function)
marks = [simcuda.virtual_time()]
for _ in range(3):
    function(x, y)
    marks.append(simcuda.device_time())
print(json.dumps([*marks, torch.cuda.max_memory_reserved()]))
"""
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    first = timed(program, variables=variables)
    assert first == timed(program, variables=variables)
    before, *ends, _ = first
    assert ends[0] - before < 100_000_000  # nanoseconds: to compile takes seconds


def test_launches_that_nobody_can_time(simulate):
    done = simulate(
        """
        import torch
        from triton_kernels_of_tests import increment, product
        x = torch.empty(32, 32, device="cuda")
        kernel = increment.warmup(x, grid=(1,))
        for launch in (
            lambda: product[(1,)](x, x, x, block=32),
            lambda: kernel[1, 1, 1](x),
        ):
            try:
                launch()
            except RuntimeError as error:
                print(error)
        """,
        kernels="timed",
        card="A100-SXM-40GB",
        capacity=None,
    )
    assert done.stdout.count("does not have this driver function") == 2
    why = "is not simulated in virtual time: it"
    assert f"simcuda: triton::product {why} multiplies matrices" in done.stderr
    assert f"simcuda: triton::increment {why} was launched past `run`" in done.stderr
