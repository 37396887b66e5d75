"""Whole programs give what the CPU gives."""

from __future__ import annotations

import pytest

MODES = [
    {"kernels": "inline"},
    {"kernels": "inline", "schedule": "late"},
    {"kernels": "async"},
    {"kernels": "async", "schedule": "early"},
    {"kernels": "async", "schedule": "late"},
    {"kernels": "async", "schedule": "split"},
]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(mode.values()))
def test_models_train_as_on_the_cpu(simulate, mode):
    simulate(
        """
        import torch
        from models import MODELS, OPTIMISERS, make, train
        for name in MODELS:
            for optimiser in OPTIMISERS:
                here = train(make(name), optimiser, "cpu")
                there = train(make(name), optimiser, "cuda")
                torch.testing.assert_close(there, here, rtol=2e-3, atol=2e-3, msg=name + optimiser)
        """,
        **mode,
    )


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_autocast_and_gradient_scaling(simulate, kernels):
    simulate(
        """
        import torch
        from models import MODELS, OPTIMISERS, make, train
        for name in MODELS:
            for dtype in (torch.float16, torch.bfloat16):
                exact = train(make(name), "fused", "cpu")[:4]
                for optimiser in ("fused", "foreach"):
                    found = train(make(name), optimiser, "cuda", autocast=dtype)[:4]
                    torch.testing.assert_close(found, exact, rtol=0.05, atol=0.05)
        """,
        kernels=kernels,
    )


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_random_numbers_are_reproducible_and_replayed(simulate, kernels):
    simulate(
        """
        import torch
        from models import make, train
        def run(replay):
            model = make("gpt", dropout=0.3, replay=replay)
            torch.manual_seed(5)
            return train(model, "sgd", "cuda")
        assert run(False) == run(False) == run(True)  # checkpointing draws the same again
        torch.manual_seed(1)
        one = torch.rand(9, device="cuda")
        state = torch.cuda.get_rng_state()
        two = torch.rand(9, device="cuda")
        torch.cuda.set_rng_state(state)
        assert torch.rand(9, device="cuda").equal(two) and not one.equal(two)
        generator = torch.Generator("cuda").manual_seed(1)
        assert torch.rand(9, device="cuda", generator=generator).equal(one)
        kept = torch.nn.functional.dropout(torch.ones(10_000, device="cuda"), 0.25).ne(0)
        assert 0.70 < kept.float().mean().item() < 0.80
        """,
        kernels=kernels,
    )


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_every_attention_is_the_same(simulate, kernels):
    simulate(
        """
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention as attend
        torch.manual_seed(0)
        inputs = [torch.randn(2, 4, 16, 8).requires_grad_() for _ in range(3)]
        weight = torch.randn(2, 4, 16, 8)
        def run(device, dtype, **more):
            q, k, v = (i.detach().to(device, dtype).requires_grad_() for i in inputs)
            out = attend(q, k, v, **more)
            (out * weight.to(device, dtype)).sum().backward()
            return [t.float().cpu() for t in (out, q.grad, k.grad, v.grad)]
        for causal in (False, True):
            exact = run("cpu", torch.float32, is_causal=causal)
            for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                            SDPBackend.MATH):
                with sdpa_kernel(backend):
                    found = run("cuda", torch.bfloat16, is_causal=causal)
                torch.testing.assert_close(found, exact, rtol=0.1, atol=0.1)
        bias = torch.randn(16, 16)
        exact = run("cpu", torch.float32, attn_mask=bias)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            found = run("cuda", torch.float32, attn_mask=bias.cuda())
        torch.testing.assert_close(found, exact)
        """,
        kernels=kernels,
    )


@pytest.mark.parametrize("schedule", [None, "early", "late", "split"])
def test_the_host_runs_ahead(simulate, schedule):
    simulate(
        """
        import torch
        from models import make
        from torch.nn import functional as F
        model = make("gpt").cuda()
        optimiser = torch.optim.AdamW(model.parameters(), fused=True)
        tokens = torch.randint(64, (6, 16)).cuda()
        stream = torch.cuda.current_stream()
        def step():
            optimiser.zero_grad(set_to_none=False)
            F.cross_entropy(model(tokens), tokens[:, 0]).backward()
            optimiser.step()
        step()
        torch.cuda.synchronize()
        torch.cuda._sleep(5_000_000_000)
        step()
        assert not stream.query()  # forward, backward and optimiser were queued behind the sleep
        torch.cuda.synchronize()
        """,
        kernels="async",
        schedule=schedule,
    )


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_threads_and_streams_of_their_own(simulate, kernels):
    simulate(
        """
        import threading, torch
        from models import make, train
        expected = train(make("cnn"), "sgd", "cpu")
        models = [make("cnn") for _ in range(3)]
        results = [None] * 3
        def run(i):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                results[i] = train(models[i], "sgd", "cuda")
        threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        for result in results:
            torch.testing.assert_close(result, expected, rtol=2e-3, atol=2e-3)
        """,
        kernels=kernels,
    )


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_a_lazy_clone_is_copied_when_one_of_the_two_is_written(simulate, kernels):
    simulate(
        """
        import torch
        original = torch.arange(5., device="cuda")
        clone = torch._lazy_clone(original)
        assert torch._C._is_cow_tensor(clone) and clone.add(1).tolist() == [1, 2, 3, 4, 5]
        clone.add_(1)
        assert not torch._C._is_cow_tensor(clone)
        assert original.tolist() == [0, 1, 2, 3, 4] and clone.tolist() == [1, 2, 3, 4, 5]
        """,
        kernels=kernels,
    )
