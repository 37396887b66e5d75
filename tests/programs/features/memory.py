"""Streams, memory, and what looks at either."""

from __future__ import annotations

from collections.abc import Generator

import numpy
import torch

from features.common import COUNT, Result, Section, gradients, leaf, numbers, perceptron

SECTION = feature = Section("Streams and memory")
PER_THREAD = 2  # cudaStreamPerThread


@feature("Side streams, events, `record_stream`", ratio=1.2)
def streams() -> Generator[None, None, Result]:
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    x = numbers()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x.sin() + x
        done.record()
    x.record_stream(side)
    del x
    yield
    done.wait()
    z = y * 2
    y.record_stream(torch.cuda.current_stream())
    yield
    return {"y": y, "z": z}


@feature("Streams with priorities", ratio=1.2)
def priorities() -> Generator[None, None, Result]:
    main, results = torch.cuda.current_stream(), []
    for priority in (-1, 0):
        stream = torch.cuda.Stream(priority=priority)
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(numbers(seed=priority + 2).exp())
        main.wait_stream(stream)
        yield
    return {"results": results}


@feature("The default stream of a thread", ratio=1.2)
def stream_of_the_thread() -> Generator[None, None, Result]:
    main, stream = torch.cuda.current_stream(), torch.cuda.ExternalStream(PER_THREAD)
    x = numbers()
    stream.wait_stream(main)
    with torch.cuda.stream(stream):
        y = x.exp()
    yield
    with torch.cuda.stream(stream):
        y += x
    main.wait_stream(stream)
    yield
    return {"x": x, "y": y}


@feature("`non_blocking` copies both ways, page-locked memory")
def copies() -> Generator[None, None, Result]:
    host = torch.arange(float(COUNT)).pin_memory()
    x = host.to("cuda", non_blocking=True)
    yield
    back = torch.empty(COUNT, pin_memory=True)
    back.copy_(x * 2, non_blocking=True)
    yield
    torch.cuda.synchronize()
    return {"x": x, "back": back, "view": x[::3].to("cpu", non_blocking=False)}


@feature("Exchange with NumPy, DLPack, `__cuda_array_interface__`")
def exchange() -> Generator[None, None, Result]:
    x = torch.from_numpy(numpy.arange(float(COUNT), dtype=numpy.float32)).cuda()
    yield
    shared = torch.from_dlpack(x)
    pointer = x.__cuda_array_interface__["data"][0]
    yield
    shared.add_(1)
    return {"x": x, "same": pointer == shared.data_ptr(), "numpy": x.cpu().numpy().sum()}


@feature("`MemPool`: memory apart from others", ratio=1.2)
def pools() -> Generator[None, None, Result]:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = numbers()
    yield
    y = x * 2
    yield
    return {"x": x, "y": y}


@feature("`torch.cuda.graph`, of pinned tensors", ratio=1.2)
def cuda_graphs() -> Generator[None, None, Result]:
    x, y = numbers(), numbers(seed=2)
    with torch.cuda.lms.pin(x, y):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # takes memory of its own
            z = x * 2 + y
    others = [numbers(seed=i) for i in range(24)]
    yield
    graph.replay()
    yield
    return {"z": z, "others": others}


@feature("`torch.cuda.graph`, random numbers", ratio=0.7)
def random_numbers_in_graphs() -> Generator[None, None, Result]:
    torch.cuda.manual_seed(3)
    x = numbers()
    with torch.cuda.lms.pin(x):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.nn.functional.dropout(x)
        results = []
        for _ in range(3):
            yield
            graph.replay()
            results.append(y.clone())
        return {"results": results}


@feature("Memory snapshots and history")
def snapshots() -> Generator[None, None, Result]:
    torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        x = numbers()
        yield
        snapshot = torch.cuda.memory_snapshot()
        text = torch.cuda.memory_summary()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    yield
    return {"x": x, "segments": len(snapshot) > 0, "summary": "Allocated memory" in text}


@feature("Profilers")
def profiled() -> Generator[None, None, Result]:
    model = perceptron()
    with torch.profiler.profile(profile_memory=True, record_shapes=True) as profile:
        y = model(numbers(512, 512))
        yield
        y.square().mean().backward()
    names = {event.key for event in profile.key_averages()}
    return {"gradients": gradients(model), "linear": "aten::linear" in names}


@feature("Exceptions in the middle of operators and of backward passes")
def exceptions() -> Generator[None, None, Result]:
    x = leaf()

    def fail(gradient: torch.Tensor) -> None:
        raise ValueError("from a hook")

    caught = []
    for attempt in range(2):
        y = x.exp()
        if attempt == 0:
            y.register_hook(fail)
        yield
        try:
            y.sum().backward()
            torch.mm(numbers(3, 4), x.detach()[:6].view(2, 3) if attempt else numbers(5, 4))
        except (ValueError, RuntimeError) as error:
            caught.append(type(error).__name__)
    return {"x": x, "gradient": x.grad, "caught": caught}


@feature("Deterministic algorithms, filled memory")
def deterministic() -> Generator[None, None, Result]:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        x = torch.empty(COUNT, device="cuda").nan_to_num(1.0)
        yield
        index = torch.arange(1000, device="cuda") % 10
        summed = torch.zeros(10, device="cuda").index_add(0, index, numbers(1000))
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.use_deterministic_algorithms(True, warn_only=True)
    return {"x": x, "summed": summed}
