"""Programs about stream capture, run one after the other in a child process.

The rules are those of "Creating a Graph Using Stream Capture" in the CUDA programming guide: what
is legal is captured and can be replayed; what is not fails with CUDA's error and ends the capture.
PyTorch does not recover from a capture that fails, so those that must are made with the runtime.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import sys
import threading
import traceback
import types
from collections.abc import Callable

import torch

N = 1 << 12
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
NONE, ACTIVE, INVALIDATED = range(3)  # cudaStreamCaptureStatus
NON_BLOCKING = 1  # cudaStreamNonBlocking

# cudaErrorStreamCapture...
UNSUPPORTED, INVALID, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT = range(900, 907)
CAPTURED, WRONG_THREAD = range(907, 909)

runtime = ctypes.CDLL(None)


def call(function: str, *arguments: object) -> int:
    """Calls a function of the runtime; its error, which is not kept as the last one."""
    error = getattr(runtime, function)(*arguments)
    runtime.cudaGetLastError()
    return int(error)


def made(function: str, *arguments: object) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    assert call(function, ctypes.byref(handle), *arguments) == 0
    return handle


class Streams:
    """Two streams, an event, memory, and captures on the first stream."""

    def __init__(self, flags: int = NON_BLOCKING) -> None:
        self.one = made("cudaStreamCreateWithFlags", flags)
        self.two = made("cudaStreamCreateWithFlags", NON_BLOCKING)
        self.event = made("cudaEventCreate")
        self.memory = made("cudaMalloc", N)

    def begin(self, mode: int = GLOBAL) -> None:
        assert call("cudaStreamBeginCapture", self.one, mode) == 0

    def end(self) -> int:
        graph = ctypes.c_void_p()
        error = call("cudaStreamEndCapture", self.one, ctypes.byref(graph))
        assert (graph.value is not None) == (error == 0)
        if error == 0:
            call("cudaGraphDestroy", graph)
        return error

    def fill(self, stream: ctypes.c_void_p) -> int:
        return call("cudaMemsetAsync", self.memory, 1, N, stream)

    def record(self, stream: ctypes.c_void_p) -> int:
        return call("cudaEventRecord", self.event, stream)

    def wait(self, stream: ctypes.c_void_p) -> int:
        return call("cudaStreamWaitEvent", stream, self.event, 0)

    def status(self, stream: ctypes.c_void_p) -> int:
        status = ctypes.c_int(-1)
        assert call("cudaStreamIsCapturing", stream, ctypes.byref(status)) == 0
        return status.value


def in_thread(function: Callable[[], object]) -> object:
    """What the function returns on another thread."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def exchange_mode(mode: int) -> int:
    value = ctypes.c_int(mode)
    assert call("cudaThreadExchangeStreamCaptureMode", ctypes.byref(value)) == 0
    return value.value


def unsafe_calls(streams: Streams) -> dict[str, Callable[[], int]]:
    host, other = ctypes.c_void_p(), made("cudaEventCreate")
    data = ctypes.create_string_buffer(N)
    assert call("cudaEventRecord", other, streams.two) == 0
    return {
        "cudaMalloc": lambda: call("cudaMalloc", ctypes.byref(host), N),
        "cudaHostAlloc": lambda: call("cudaHostAlloc", ctypes.byref(host), N, 0),
        "cudaHostRegister": lambda: call("cudaHostRegister", data, N, 0),
        "cudaMemcpy": lambda: call("cudaMemcpy", streams.memory, data, N, 1),
        "cudaEventQuery": lambda: call("cudaEventQuery", other),
        "cudaEventSynchronize": lambda: call("cudaEventSynchronize", other),
        "cudaStreamQuery": lambda: call("cudaStreamQuery", streams.two),
        "cudaStreamSynchronize": lambda: call("cudaStreamSynchronize", streams.two),
        "cudaFree": lambda: call("cudaFree", streams.memory),
    }


# --- what PyTorch does ---


def a_graph_runs_when_it_is_launched() -> None:
    x = torch.zeros(N, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        z = y.mul(2).cumsum(0)
        x.add_(1)
        copy = x.clone()
    assert x.sum().item() == 0
    for i in range(3):
        graph.replay()
        assert z[-1].item() == 2 * N * (i + 1) and copy.sum().item() == N * (i + 1)
    x.fill_(10)
    graph.replay()
    assert y.eq(11).all() and copy.eq(11).all()


def random_numbers_go_on_with_each_replay() -> None:
    torch.cuda.manual_seed(7)
    torch.rand(N, device="cuda")
    expected = [torch.nn.functional.dropout(torch.ones(N, device="cuda")) for _ in range(3)]
    torch.cuda.manual_seed(7)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.nn.functional.dropout(torch.ones(N, device="cuda"))
    torch.rand(N, device="cuda")
    for numbers in expected:
        graph.replay()
        assert y.equal(numbers)
    assert not expected[0].equal(expected[1])


def a_training_step_is_captured_whole() -> None:
    def train(captured: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.Dropout(), torch.nn.Linear(64, 8)
        ).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(16, 64, device="cuda")

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            optimizer.step()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            step = graph.replay
        for _ in range(3):
            step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    for eager, captured in zip(train(False), train(True), strict=True):
        assert eager.equal(captured)


def a_fork_becomes_part_of_the_graph() -> None:
    x, side = torch.ones(N, device="cuda"), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert torch.cuda.is_current_stream_capturing()
            b = a + 1
        torch.cuda.current_stream().wait_stream(side)
        c = b * 2
    with torch.cuda.stream(side):
        assert not torch.cuda.is_current_stream_capturing()
    x.fill_(3)
    graph.replay()
    assert c.eq(14).all()


# --- what is legal ---


def work_is_recorded_and_not_done() -> None:
    streams = Streams()
    assert call("cudaMemset", streams.memory, 0, N) == 0
    streams.begin()
    assert streams.status(streams.one) == ACTIVE and streams.status(streams.two) == NONE
    assert streams.fill(streams.one) == 0
    graph = ctypes.c_void_p()
    assert call("cudaStreamEndCapture", streams.one, ctypes.byref(graph)) == 0
    assert streams.status(streams.one) == NONE
    count = ctypes.c_size_t()
    assert call("cudaGraphGetNodes", graph, None, ctypes.byref(count)) == 0 and count.value == 1
    executable = made("cudaGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))
    host = ctypes.create_string_buffer(N)
    for filled in (b"\0", b"\1"):
        assert call("cudaMemcpy", host, streams.memory, N, 2) == 0
        assert host.raw == filled * N
        assert call("cudaGraphLaunch", executable, streams.one) == 0
        assert call("cudaStreamSynchronize", streams.one) == 0
    assert call("cudaGraphExecDestroy", executable) == call("cudaGraphDestroy", graph) == 0


def modes_say_which_threads_may_make_unsafe_calls() -> None:
    for mode in (GLOBAL, THREAD_LOCAL, RELAXED):
        for thread_mode in (GLOBAL, THREAD_LOCAL, RELAXED):
            streams = Streams()
            other = made("cudaEventCreate")
            assert call("cudaEventRecord", other, streams.two) == 0

            def query(event: ctypes.c_void_p = other, thread_mode: int = thread_mode) -> int:
                exchange_mode(thread_mode)
                return call("cudaEventSynchronize", event)

            streams.begin(mode)
            legal = mode != GLOBAL or thread_mode != GLOBAL
            assert in_thread(query) == (0 if legal else UNSUPPORTED)
            assert streams.end() == (0 if legal else INVALID)
            streams.begin(mode)
            legal = mode == RELAXED or thread_mode == RELAXED
            assert query() == (0 if legal else UNSUPPORTED)
            assert streams.end() == (0 if legal else INVALID)
            assert exchange_mode(GLOBAL) == thread_mode


def work_on_other_streams_goes_on() -> None:
    streams = Streams()
    streams.begin()
    assert streams.fill(streams.two) == 0 and streams.record(streams.two) == 0
    assert made("cudaEventCreate").value
    assert streams.end() == 0
    assert call("cudaStreamSynchronize", streams.two) == 0


def an_event_may_be_recorded_anew_after_the_capture() -> None:
    streams = Streams()
    streams.begin()
    assert streams.record(streams.one) == 0
    assert streams.end() == 0
    assert call("cudaEventQuery", streams.event) == CAPTURED
    assert streams.wait(streams.two) == CAPTURED
    assert streams.record(streams.one) == 0
    assert call("cudaEventSynchronize", streams.event) == 0


# --- what is not ---


def unsafe_calls_end_the_capture() -> None:
    for name, function in unsafe_calls(Streams()).items():
        for run in (lambda f: f(), in_thread):
            streams = Streams()
            streams.begin()
            assert run(function) == UNSUPPORTED, name
            assert streams.status(streams.one) == INVALIDATED
            assert streams.fill(streams.one) == INVALID
            assert streams.end() == INVALID
            assert streams.status(streams.one) == NONE
        assert function() in (0, 600), name  # cudaErrorNotReady


def a_captured_stream_cannot_be_waited_for() -> None:
    for function in ("cudaStreamQuery", "cudaStreamSynchronize"):
        streams = Streams()
        streams.begin(RELAXED)
        assert call(function, streams.one) == UNSUPPORTED
        assert streams.end() == INVALID
    streams = Streams()
    streams.begin(RELAXED)
    assert call("cudaDeviceSynchronize") == UNSUPPORTED
    assert streams.end() == INVALID


def a_captured_event_cannot_be_waited_for_by_the_host() -> None:
    for function in ("cudaEventQuery", "cudaEventSynchronize"):
        streams = Streams()
        streams.begin(RELAXED)
        assert streams.record(streams.one) == 0
        assert call(function, streams.event) == CAPTURED
        assert streams.end() == INVALID


def work_from_outside_cannot_be_waited_for() -> None:
    streams = Streams()
    assert streams.record(streams.two) == 0
    streams.begin(RELAXED)
    assert streams.wait(streams.one) == ISOLATION
    assert streams.end() == INVALID


def a_fork_must_be_joined() -> None:
    for joins in (False, True):
        streams = Streams()
        streams.begin()
        assert streams.fill(streams.one) == 0 and streams.record(streams.one) == 0
        assert streams.wait(streams.two) == 0 and streams.status(streams.two) == ACTIVE
        assert streams.fill(streams.two) == 0
        if joins:
            assert streams.record(streams.two) == 0 and streams.wait(streams.one) == 0
        assert streams.end() == (0 if joins else UNJOINED)
        assert streams.status(streams.two) == NONE


def captures_cannot_be_merged() -> None:
    streams = Streams()
    streams.begin(RELAXED)
    assert call("cudaStreamBeginCapture", streams.two, RELAXED) == 0
    assert streams.record(streams.two) == 0
    assert streams.wait(streams.one) == MERGE
    graph = ctypes.c_void_p()
    assert call("cudaStreamEndCapture", streams.two, ctypes.byref(graph)) == INVALID
    assert streams.end() == INVALID


def a_capture_ends_where_it_began() -> None:
    streams, graph = Streams(), ctypes.c_void_p()
    streams.begin()
    assert streams.record(streams.one) == 0 and streams.wait(streams.two) == 0
    assert call("cudaStreamEndCapture", streams.two, ctypes.byref(graph)) == UNMATCHED
    assert streams.end() == INVALID
    streams.begin()
    assert in_thread(streams.end) == WRONG_THREAD
    assert streams.end() == 0
    streams.begin(RELAXED)
    assert in_thread(streams.end) == 0


def the_default_stream_takes_no_part() -> None:
    streams = Streams(flags=0)  # a stream that the default stream waits for
    assert call("cudaStreamBeginCapture", None, GLOBAL) == UNSUPPORTED
    streams.begin()
    status = ctypes.c_int()
    assert call("cudaStreamIsCapturing", None, ctypes.byref(status)) == IMPLICIT
    assert streams.fill(ctypes.c_void_p()) == IMPLICIT
    assert streams.end() == INVALID
    streams = Streams()
    streams.begin()
    assert streams.fill(ctypes.c_void_p()) == 0
    assert streams.end() == 0


def pageable_memory_cannot_be_copied() -> None:
    streams, data = Streams(), ctypes.create_string_buffer(N)
    streams.begin()
    assert call("cudaMemcpyAsync", streams.memory, data, N, 1, streams.one) == UNSUPPORTED
    assert streams.end() == INVALID


# It leaves PyTorch's allocator believing in the capture, so it comes last.
def an_answer_for_the_host_ends_the_capture_of_pytorch() -> None:
    x, graph = torch.ones(N, device="cuda"), torch.cuda.CUDAGraph()
    errors = []
    try:
        with torch.cuda.graph(graph):
            try:
                x.sum().item()
            except RuntimeError as error:
                errors.append(str(error))
    except RuntimeError as error:
        errors.append(str(error))
    assert len(errors) == 2, errors
    assert "operation not permitted when stream is capturing" in errors[0], errors
    assert "operation failed due to a previous error during capture" in errors[1], errors


def main() -> None:
    """Runs all functions that take no argument; prints a JSON object of what went wrong, or ""."""
    torch.zeros(1, device="cuda").add_(1)
    results = {}
    for name, function in list(globals().items()):
        if getattr(function, "__module__", "") != __name__ or name == "main":
            continue
        if isinstance(function, types.FunctionType) and not inspect.signature(function).parameters:
            try:
                function()
                results[name] = ""
            except Exception:
                results[name] = traceback.format_exc()
    json.dump(results, sys.stdout)
