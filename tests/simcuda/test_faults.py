"""Injected failures, and counting calls."""

from __future__ import annotations

import pytest
import simcuda


def test_a_chosen_call_fails_and_the_next_works(simulate):
    simulate(
        """
        import torch, simcuda
        device, locked = torch.ones(8, device="cuda"), torch.ones(8).pin_memory()
        event = torch.cuda.Event()
        event.record()
        torch.cuda.synchronize()
        stream = torch.cuda.current_stream()
        actions = {
            "cudaHostAlloc": lambda: torch.empty(100_000, pin_memory=True),
            "cudaMemcpyAsync": lambda: device.copy_(locked, non_blocking=True),
            "cudaEventCreate": lambda: torch.cuda.Event().record(),
            "cudaEventRecord": lambda: event.record(),
            "cudaEventSynchronize": lambda: event.synchronize(),
            "cudaStreamWaitEvent": lambda: stream.wait_event(event),
            "cudaStreamSynchronize": lambda: stream.synchronize(),
            "cudaDeviceSynchronize": lambda: torch.cuda.synchronize(),
            "cudaMemGetInfo": lambda: torch.cuda.mem_get_info(),
        }
        for function, action in actions.items():
            simcuda.set_faults(f"{function}:1")
            try:
                action()
            except RuntimeError:
                pass
            else:
                raise AssertionError(f"{function} did not fail")
            action()
            assert (device * 2).cpu().eq(2).all(), function
        """
    )


def test_device_memory_can_be_refused(simulate):
    simulate(
        """
        import torch, simcuda
        def allocate():
            return torch.empty(50 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.init()
        simcuda.set_faults("cudaMalloc:1")
        allocate()  # the caching allocator frees what it holds and tries again
        torch.cuda.empty_cache()
        simcuda.set_faults("cudaMalloc:1-")
        try:
            allocate()
        except torch.cuda.OutOfMemoryError:
            pass
        else:
            raise AssertionError("no error")
        simcuda.set_faults("")
        allocate()
        """
    )


def test_stream_creation_can_fail(simulate):
    simulate(
        """
        import ctypes, simcuda
        handle = ctypes.c_void_p()
        create = ctypes.CDLL(None).cudaStreamCreateWithPriority
        assert [create(ctypes.byref(handle), 1, 0) for _ in range(4)] == [0, 2, 0, 0]
        assert simcuda.calls()["cudaStreamCreate"] == 4
        """,
        faults="cudaStreamCreate:2",
    )


def test_all_calls_from_one_on_can_fail_and_several_of_a_function(simulate):
    simulate(
        """
        import ctypes, simcuda
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        def ask(times):
            function = ctypes.CDLL(None).cudaMemGetInfo
            return [function(ctypes.byref(free), ctypes.byref(total)) != 0 for _ in range(times)]
        assert ask(4) == [False, False, True, True]
        simcuda.set_faults("cudaMemGetInfo:2,cudaMemGetInfo:4")
        assert ask(5) == [False, True, False, True, False]
        simcuda.set_faults("")
        assert ask(2) == [False, False]
        assert simcuda.calls()["cudaMemGetInfo"] == 11
        """,
        faults="cudaMemGetInfo:3-",
    )


def test_a_wrong_plan_is_refused_and_changes_nothing(simulate):
    simulate(
        """
        import simcuda
        for plan in ("cudaMalloc", "cudaMalloc:0", "cudaMalloc:x", "cudaMallok:1"):
            try:
                simcuda.set_faults(plan)
            except simcuda.SimulationError as error:
                assert "cudaMallo" in str(error)
            else:
                raise AssertionError(plan)
        """
    )


def test_a_wrong_plan_in_the_environment_ends_the_process(simulate):
    done = simulate("import torch; torch.cuda.init()", status=2, faults="cudaMallok:1")
    assert "no simulated function 'cudaMallok' to fail" in done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {"capacity": "64Q"},
        {"capacity": 0},
        {"capacity": "1G", "devices": 0},
        {"capacity": "1G", "kernels": "slow"},
        {"capacity": "1G", "schedule": "never"},
        {"capacity": "1G", "faults": "cudaMalloc"},
        {"capacity": "1G", "copy_bandwidth": -5},
    ],
)
def test_wrong_settings_are_refused(build_dir, settings):
    with pytest.raises(simcuda.SimulationError, match="is not valid: expected"):
        simcuda.environment(build_dir, **settings)


@pytest.mark.parametrize(
    "variable",
    [
        "CAPACITY=0",
        "DEVICES=99",
        "KERNELS=slow",
        "SCHEDULE=never",
        "POISON=7",
        "COPY_BANDWIDTH=x",
        "DRIVER_LOCK=2",
    ],
)
def test_wrong_variables_end_the_process(simulate, variable):
    name, _, value = f"SIMCUDA_{variable}".partition("=")
    program = "import ctypes; ctypes.CDLL(None).cudaDeviceSynchronize()"
    done = simulate(program, status=2, variables={name: value})
    assert f"simcuda: {name}={value} is not valid: expected" in done.stderr


def test_a_folder_without_a_build_is_refused(tmp_path):
    with pytest.raises(simcuda.SimulationError, match=r"run build\.py --out"):
        simcuda.environment(tmp_path, capacity="1G")


def test_a_destroyed_stream_is_an_error_that_sticks(simulate):
    simulate(
        """
        import ctypes, torch
        torch.zeros(1, device="cuda")
        runtime, handle = ctypes.CDLL(None), ctypes.c_void_p()
        assert runtime.cudaStreamCreate(ctypes.byref(handle)) == 0
        assert runtime.cudaStreamQuery(handle) == 0
        assert runtime.cudaStreamDestroy(handle) == 0
        assert runtime.cudaStreamQuery(handle) == 400  # cudaErrorInvalidResourceHandle
        assert runtime.cudaDeviceSynchronize() == 400  # for whoever ignored it
        """
    )


def test_a_new_stream_gets_the_handle_of_the_one_destroyed_last(simulate):
    simulate(
        """
        import ctypes
        runtime, handle, others = ctypes.CDLL(None), ctypes.c_void_p(), set()
        for _ in range(3):
            assert runtime.cudaStreamCreate(ctypes.byref(handle)) == 0
            others.add(handle.value)
            assert runtime.cudaStreamDestroy(handle) == 0
        assert len(others) == 1
        """
    )
