"""What is computed: transforms, linear algebra, random numbers, indices."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import distributions
from torch.nn import functional

from features.common import COUNT, Result, Section, leaf, numbers

SECTION = feature = Section("Numerics")


@feature("FFT, with gradients")
def fourier() -> Generator[None, None, Result]:
    x = leaf(1024, 1024)
    spectrum = torch.fft.rfft2(x)
    yield
    y = torch.fft.irfft2(spectrum * spectrum.abs())
    yield
    y.square().sum().backward()
    return {"spectrum": spectrum, "y": y, "gradient": x.grad}


@feature("`linalg`: QR, Cholesky, SVD, eigenvalues, solving")
def linear_algebra() -> Generator[None, None, Result]:
    a = numbers(256, 256)
    symmetric = a @ a.t() + 256 * torch.eye(256, device="cuda")
    q, r = torch.linalg.qr(a)
    factor = torch.linalg.cholesky(symmetric)
    yield
    values = torch.linalg.eigvalsh(symmetric)
    singular = torch.linalg.svdvals(a)
    yield
    solved = torch.linalg.solve(symmetric, a)
    inverse = torch.cholesky_inverse(factor)
    return {"qr": [q, r], "values": [values, singular], "solved": [solved, inverse]}


@feature("`einsum`, batched products, attention")
def products() -> Generator[None, None, Result]:
    q, k, v = (leaf(4, 8, 256, 64, seed=i) for i in range(3))
    attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    yield
    mixed = torch.einsum("bhqd,bhkd->bqk", attended, k)
    yield
    torch.bmm(mixed, mixed).square().mean().backward()
    return {"attended": attended, "mixed": mixed, "gradients": [q.grad, k.grad, v.grad]}


@feature("Convolutions in one to three dimensions, pooling, interpolation")
def convolutions() -> Generator[None, None, Result]:
    x = leaf(1, 4, 32, 48, 48)
    y = functional.conv3d(x, numbers(4, 4, 3, 3, 3, seed=2))
    yield
    y = functional.interpolate(functional.max_pool3d(y, 2), scale_factor=2)
    planes = functional.conv2d(y[:, :, 3], numbers(4, 4, 3, 3, seed=3))
    lines = functional.conv_transpose1d(planes[:, :, 0], numbers(4, 4, 3, seed=4))
    yield
    (y.square().sum() + lines.square().sum()).backward()
    return {"y": y, "planes": planes, "lines": lines, "gradient": x.grad}


@feature("Recurrent layers")
def recurrent() -> Generator[None, None, Result]:
    torch.manual_seed(1)
    layer = torch.nn.GRU(128, 128, num_layers=2).cuda()
    x = leaf(64, 32, 128)
    yield
    y, state = layer(x)
    yield
    (y.square().sum() + state.sum()).backward()
    return {"y": y, "state": state, "gradient": x.grad}


@feature("`distributions`, with gradients of samples")
def random_variables() -> Generator[None, None, Result]:
    torch.manual_seed(7)
    mean = leaf()
    normal = distributions.Normal(mean, mean.detach().abs() + 1)
    yield
    sample = normal.rsample()
    chosen = distributions.Categorical(logits=numbers(1024, 256, seed=2)).sample()
    yield
    normal.log_prob(sample.detach()).sum().backward()
    return {"sample": sample, "chosen": chosen, "gradient": mean.grad}


@feature("State of random number generators")
def generators() -> Generator[None, None, Result]:
    torch.manual_seed(3)
    state = torch.cuda.get_rng_state()
    first = torch.randn(COUNT, device="cuda")
    yield
    torch.cuda.set_rng_state(state)
    again = functional.dropout(torch.randn(COUNT, device="cuda"), 0.25)
    own = torch.Generator("cuda").manual_seed(5)
    yield
    drawn = torch.randint(1000, (COUNT,), device="cuda", generator=own)
    return {"first": first, "again": again, "drawn": drawn, "shuffled": torch.randperm(1000)}


@feature("Sorting, `topk`, `unique`, `nonzero`, cumulative sums")
def selections() -> Generator[None, None, Result]:
    x = numbers()
    values, order = x.sort(stable=True)
    yield
    largest = x.topk(100)
    found = (x > 2).nonzero()
    yield
    kinds, counts = (x * 4).int().unique(return_counts=True)
    return {
        "sorted": [values, order],
        "chosen": [*largest, found, kinds, counts, x[x > 1], torch.searchsorted(values, x)],
    }


@feature("Indexing, gathering, scattering, with gradients")
def indices() -> Generator[None, None, Result]:
    x, index = leaf(1024, 1024), torch.randperm(1024).cuda() * 0 + torch.arange(1024).cuda()
    y = x[index.flip(0)].gather(1, index.expand(1024, -1))
    yield
    y = y.index_add(0, index[:100], x.detach()[:100]).scatter(1, index[:, None], 0.5)
    yield
    z = torch.where(y > 0, y, y.exp())
    z[index[:10], index[:10]] = 3
    z.sum().backward()
    return {"y": y, "z": z, "gradient": x.grad}


@feature("Embeddings, `embedding_bag`, sparse gradients")
def embeddings() -> Generator[None, None, Result]:
    torch.manual_seed(1)
    table = torch.nn.Embedding(20_000, 64, sparse=True).cuda()
    bag = torch.nn.EmbeddingBag(20_000, 64, mode="sum").cuda()
    words = torch.randint(20_000, (64, 32)).cuda()
    yield
    y = table(words).sum(1) + bag(words)
    yield
    y.square().sum().backward()
    torch.optim.SGD(table.parameters(), lr=0.1).step()
    return {"y": y, "table": table.weight, "bag": bag.weight.grad}


@feature("Losses: cross entropy, CTC, triplets")
def losses() -> Generator[None, None, Result]:
    x = leaf(512, 8, 200)
    targets = torch.randint(1, 200, (8, 30), generator=torch.Generator().manual_seed(1)).cuda()
    lengths = torch.full((8,), 512), torch.full((8,), 30)
    yield
    ctc = functional.ctc_loss(x.log_softmax(2), targets, *lengths)
    entropy = functional.cross_entropy(x[:30].transpose(0, 1).transpose(1, 2), targets)
    yield
    triplet = functional.triplet_margin_loss(x[0], x[1], x[2])
    (entropy + triplet).backward()
    return {"losses": [ctc, entropy, triplet], "gradient": x.grad}
