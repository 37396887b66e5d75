"""Processes: start, exit, fork, children; and what is not simulated."""

from __future__ import annotations

import pytest
import simcuda


def test_an_ordinary_process_is_not_simulated():
    assert not simcuda.active()
    with pytest.raises(simcuda.SimulationError, match="does not run on the simulated device"):
        simcuda.stats()


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_a_program_that_ends_in_an_exception_ends_cleanly(simulate, kernels):
    program = """
        import torch
        model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]).cuda()
        model(torch.randn(32, 64, device="cuda")).sum().backward()
        raise SystemExit(7)
        """
    for _ in range(3):
        simulate(program, status=7, kernels=kernels, schedule="late", launches=True)


def test_a_forked_child_that_leaves_cuda_alone_ends_cleanly(simulate):
    simulate(
        """
        import os, torch
        x = torch.ones(1 << 18, device="cuda") * 2
        child = os.fork()
        if child == 0:
            assert torch.ones(3).sum() == 3
            raise SystemExit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        assert x.eq(2).all()
        """,
        kernels="async",
        schedule="late",
    )


def test_a_forked_child_that_uses_cuda_gets_the_usual_error(simulate):
    simulate(
        """
        import ctypes, os, torch
        torch.ones(3, device="cuda")
        child = os.fork()
        if child == 0:
            try:
                torch.ones(3, device="cuda")
            except RuntimeError as error:
                assert "Cannot re-initialize CUDA in forked subprocess" in str(error)
            assert ctypes.CDLL(None).cudaDeviceSynchronize() == 3  # initialisation error
            raise SystemExit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        """
    )


def test_children_are_on_the_device_too(simulate):
    simulate(
        """
        import subprocess, sys
        program = "import torch; print(torch.ones(3, device='cuda').sum().item())"
        assert subprocess.check_output([sys.executable, "-c", program], text=True) == "3.0\\n"
        """
    )


def test_an_operator_for_cuda_only_is_named(simulate):
    simulate(
        """
        import torch
        x = torch.ones(4, 4, device="cuda")
        try:
            torch.ops.aten._cudnn_init_dropout_state(0.5, True, 1, dtype=torch.uint8, device="cuda")
        except NotImplementedError as error:
            assert "_cudnn_init_dropout_state is not simulated" in str(error), error
        else:
            raise AssertionError("ran")
        """
    )


def test_a_kernel_that_slips_by_is_counted_and_named(simulate):
    done = simulate(
        """
        import simcuda, torch
        from ctypes import CDLL, c_void_p
        torch.cuda.init()
        launch = CDLL(None).cudaLaunchKernelExC
        config = (c_void_p * 16)()
        assert launch(config, None, None) == 801
        assert simcuda.stats().unsimulated_launches == 1
        assert simcuda.unsimulated() == ["(unknown)"]
        """,
        launches=True,
    )
    assert "simcuda: kernel (unknown) is not simulated" in done.stderr


def test_cudnn_stays_off(simulate):
    simulate(
        """
        import torch
        torch.backends.cudnn.enabled = True
        with torch.backends.cudnn.flags(enabled=True):
            assert not torch.backends.cudnn.enabled
            convolution = torch.nn.Conv2d(3, 4, 3).cuda()
            convolution(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()
        assert convolution.weight.grad.isfinite().all()
        """
    )


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_an_error_on_the_device_sticks_in_async_mode(simulate, kernels):
    done = simulate(
        """
        import os, sys, torch, simcuda
        x = torch.ones(3, 4, device="cuda")
        index = torch.tensor([9], device="cuda")
        try:
            torch.index_select(x, 0, index)
            torch.cuda.synchronize()
        except (IndexError, RuntimeError) as error:
            print(type(error).__name__)
        else:
            raise AssertionError("no error")
        try:
            torch.ones(3, device="cuda")
        except RuntimeError:
            print("stuck")
        """,
        kernels=kernels,
    )
    assert ("stuck" in done.stdout) == (kernels == "async")
    assert ("aten::index_select: index out of range" in done.stderr) == (kernels == "async")


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_a_key_above_cuda_does_not_see_the_simulation_compute(simulate, kernels):
    simulate(
        """
        import torch
        seen = []
        fallback = torch._C._dispatch_library("IMPL", "_", "FPGA")
        fallback.fallback_fallthrough()
        library = torch.library.Library("aten", "IMPL")
        cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
        def mul(keys, *args):
            seen.append(args[0].device.type)
            return torch.ops.aten.mul.Tensor.redispatch(cuda, *args)
        library.impl("mul.Tensor", mul, "FPGA", with_keyset=True)
        torch._C._dispatch_tls_set_dispatch_key_included("FPGA", True)
        x = torch.ones(8, 8, device="cuda")
        y = x * x
        torch.native_dropout(x, 0.5, True)  # written with mul
        torch.cuda.synchronize()
        torch._C._dispatch_tls_set_dispatch_key_included("FPGA", False)
        assert seen == ["cuda"], seen
        """,
        kernels=kernels,
    )


def test_shapes_are_found_without_dynamo_until_a_program_imports_it(simulate):
    simulate(
        """
        import sys, torch
        x = torch.ones(4, 4, device="cuda")
        torch.addmm(x, x, x).mul(2)
        assert "torch._dynamo" not in sys.modules
        finders = len(sys.meta_path)
        compiled = torch.compile(lambda a: (a @ a * 2).relu(), backend="aot_eager")
        assert compiled(x).sum().item() == 128
        assert len(sys.meta_path) == finders - 1
        """,
        kernels="async",
    )
