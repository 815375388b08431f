"""What is ETC's own: labels of relative position, within and between its two inputs."""

from functools import partial

import pytest
import torch
from pairs import dense, tiles

from greenformers.attention import Shape, build

HEADS, DIM, N = 3, 5, 100
SHAPE = Shape(heads=HEADS, head_dim=DIM, max_len=128)
PADDING = torch.arange(N) < torch.tensor([N, 71])[:, None]


def drawn(length=N):
    generator = torch.Generator().manual_seed(1)
    sizes = (3, len(PADDING), HEADS, length, DIM)
    return [x.requires_grad_() for x in torch.randn(sizes, generator=generator, dtype=torch.float64)]


def with_labels(**options):
    """A mechanism whose labels count as much as the keys."""
    torch.manual_seed(0)
    module = build("etc", SHAPE, **options).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def compare(module, key_mask, length=N):
    tensors = drawn(length)
    everything, weights = [*tensors, *module.parameters()], torch.linspace(-1, 2, tensors[0].numel()).double()
    output_mask = True if key_mask is None else key_mask[:, None, :, None]
    results = []
    for function in (module, partial(dense, module)):
        out = function(*tensors, key_mask) * output_mask  # outputs of padding mean nothing
        mixed = weights @ out.flatten()
        results.append([out, *torch.autograd.grad(mixed, everything, materialize_grads=True)])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("key_mask", [None, PADDING], ids=["", "padded"])
@pytest.mark.parametrize("clip", [None, 0, 7, 30], ids=str)
@pytest.mark.parametrize(("rows", "size"), [(6, 500), (64, 2**19)])
def test_outputs_and_gradients_of_the_labels_across_tiles(clip, rows, size, key_mask):
    with tiles(rows, size):
        compare(with_labels(globals=6, radius=7, clip=clip), key_mask)


@pytest.mark.parametrize("globals_", [0, 99, 100, 120])
@pytest.mark.parametrize("clip", [None, 4], ids=str)
def test_one_input_may_be_empty(globals_, clip):
    compare(with_labels(globals=globals_, radius=7, clip=clip), PADDING)


@pytest.mark.parametrize("length", [1, 5, 6, 7])
def test_short_sequences(length):
    compare(with_labels(globals=6, radius=3, clip=2), None, length)


def test_parameters():
    sizes = {name: tuple(x.shape) for name, x in build("etc", SHAPE, clip=4).named_parameters()}
    assert sizes == {"long": (3, 9, 5), "wide": (3, 9, 5), "between": (3, 2, 5)}
    assert not list(build("etc", SHAPE, clip=None).parameters())


def test_labels_of_0_are_no_labels():
    module, plain = (build("etc", SHAPE, globals=6, radius=7, clip=clip).double() for clip in (4, None))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    torch.testing.assert_close(module(*drawn()), plain(*drawn()), rtol=1e-12, atol=1e-12)


def test_labels_begin_small_and_without_bias():
    torch.manual_seed(0)
    for parameter in build("etc", Shape(heads=16, head_dim=64, max_len=99)).parameters():
        assert parameter.std().item() == pytest.approx(0.02, rel=0.1)
        assert parameter.mean().abs() < 0.002
