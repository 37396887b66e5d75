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


def test_virtual_time_has_no_kernels_of_triton(simulate):
    done = simulate(
        """
        import torch
        from triton_kernels_of_tests import add_scaled
        x = torch.ones(1000, device="cuda")
        try:
            add_scaled[(4,)](x, x, x, 1.0, 1000, block=256)
        except RuntimeError as error:
            print(error)
        """,
        kernels="timed",
        card="A100-SXM-40GB",
        capacity=None,
    )
    assert "does not have this driver function" in done.stdout
    assert "simcuda: cuLaunchKernel in virtual time is not simulated" in done.stderr
