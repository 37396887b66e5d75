"""Memory and events that processes share."""

from __future__ import annotations


def test_a_tensor_and_an_event(simulate):
    simulate(
        """
        import sharing, torch
        processes = torch.multiprocessing.get_context("spawn")
        sent, received = processes.Queue(), processes.Queue()
        process = processes.Process(target=sharing.follow, args=(sent, received))
        process.start()
        x, large = torch.ones(1000, device="cuda"), torch.ones(1500, 1500, device="cuda")
        event = torch.cuda.Event(interprocess=True)
        sent.put(x)
        assert received.get(timeout=60) == "there"
        for _ in range(12):
            large = large @ large
        x.fill_(2)
        event.record()
        sent.put(event.ipc_handle())
        early, late = received.get(timeout=60)
        process.join()
        assert early == [1.0] * 1000 and late == [2.0] * 1000
        assert x[0] == 7 and x[1:].eq(2).all()
        """,
        kernels="async",
    )


def test_memory_that_nobody_shares(simulate):
    simulate(
        """
        import ctypes, torch

        class Handle(ctypes.Structure):
            _fields_ = [("numbers", ctypes.c_int * 16)]

        torch.ones(3, device="cuda")
        cuda = ctypes.CDLL(None)
        address = ctypes.c_void_p()
        nobody = Handle((ctypes.c_int * 16)(2**30, 1))
        assert cuda.cudaIpcOpenMemHandle(ctypes.byref(address), nobody, 1) == 205
        assert cuda.cudaIpcCloseMemHandle(ctypes.c_void_p(4096)) == 1
        assert cuda.cudaIpcGetMemHandle(ctypes.byref(nobody), ctypes.c_void_p(4096)) == 1
        event = torch.cuda.Event()
        event.record()
        assert cuda.cudaIpcGetEventHandle(ctypes.byref(nobody), event._as_parameter_) == 400
        """,
        kernels="async",
    )


def test_timed_mode_says_that_it_shares_nothing(simulate):
    simulate(
        """
        import torch
        try:
            torch.ones(1000, device="cuda").untyped_storage()._share_cuda_()
        except RuntimeError as error:
            assert "operation not supported" in str(error), error
        else:
            raise AssertionError("it ran")
        """,
        kernels="timed",
        card="A100-SXM-40GB",
    )
