"""What the operator of tiles comes to, by its arguments alone, against the operations of the engine itself."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from greenformers.attention import Shape, build
from greenformers.measure.flops import flops
from greenformers.measure.trace import trace

each_pattern = pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sliding_window", {"window": 40, "dilation": (1, 1, 2)}),
        ("sparse_strided", {}),
        ("sparse_fixed", {"summary": 2}),
        ("bigbird", {"block": 16}),
        ("etc", {"radius": 40}),
        ("local_blocks", {"block": 50}),
    ],
)


def make(name, options, length):
    return build(name, Shape(3, 8, length), **options)


@each_pattern
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_flops_on_the_meta_device_are_those_of_the_engine(name, options, training):
    def count(device):
        module = make(name, options, 400).to(device)
        q, k, v = (torch.randn(2, 3, 400, 8, device=device, requires_grad=training) for _ in range(3))

        def call():
            out = module.local(q, k, v, None)  # without the dense attention of global queries
            if training:
                out.sum().backward()

        return flops(call)

    assert count("meta") == count("cpu")


class Operations(TorchDispatchMode):
    """Counts what is run, and the bytes that are read and written beside products."""

    def __init__(self):
        super().__init__()
        self.kinds, self.elementwise = Counter(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in str(func):
            self.kinds[str(func)] += 1
            if "bmm" not in str(func):
                tensors = [x for x in (*args, out) if isinstance(x, torch.Tensor)]
                self.elementwise += sum(x.numel() * x.element_size() for x in tensors)
        return out


class Mixing(torch.nn.Module):
    def __init__(self, mechanism):
        super().__init__()
        self.mechanism, self.scale = mechanism, torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        q = (x * self.scale).unflatten(2, (3, -1)).transpose(1, 2)
        return self.mechanism(q, q, q)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_trace_comes_near_what_the_engine_does(training):
    shape, options = (2, 1500, 96), {"window": 128}

    def network():
        return Mixing(build("sliding_window", Shape(3, 32, 1500), **options))

    work = trace(network, shape, training=training)
    with Operations() as done:
        out = network()(torch.randn(shape)).sum()
        if training:
            out.backward()
    assert work.operations == pytest.approx(done.kinds.total(), rel=0.3)
    assert work.elementwise == pytest.approx(done.elementwise, rel=0.3)
