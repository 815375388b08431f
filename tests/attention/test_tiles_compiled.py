"""Scores by distance, and keys read until it is enough, under torch.compile: in tiles, as operators of our own."""

import pytest
import torch
from cases import holes, unmasked

from greenformers.attention import Shape, _by_distance, _halting, _relative_tiles, adaptive_span, build
from greenformers.measure.memory import peak_memory
from greenformers.position import Place
from greenformers.position import build as position

H, D, N = 3, 5, 37
CASES = {
    "transformer_xl": {},
    "adaptive_span": {"span": 21, "ramp": 4, "init": 0.3},
    "adaptive_span of each query": {"span": 9, "ramp": 4, "dynamic": True},
    "full with alibi": {},
    "full with huang": {},
    "full with t5": {},
    "dacs": {"threshold": 5.3},
    "dacs with a limit": {"threshold": 5.3, "look_ahead": 3, "synchronous": True},
}
each_case = pytest.mark.parametrize("name", CASES)
IN_TILES = ("transformer_xl", "adaptive_span", "full with alibi", "dacs")
PATTERN = {"sliding_window": {"window": 5}}


class Mixing(torch.nn.Module):
    """A mechanism of tiles, with its kind of position if it has one."""

    def __init__(self, name, causal, **options):
        super().__init__()
        torch.manual_seed(0)
        mechanism, *_, kind = name.split()[0], name.split()[-1]
        self.mechanism = build(mechanism, Shape(H, D, 4096, causal=causal), **(CASES | PATTERN)[name], **options)
        place = Place(H * D, H, D, 64, causal=causal)
        self.more = torch.nn.ModuleDict({"relative": position(kind, place)} if mechanism == "full" else {})
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.3 * torch.rand_like(parameter))

    def forward(self, q, k, v, mask=None):
        return self.mechanism(q, k, v, mask, **self.more)


def drawn(queries=N, keys=N, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(2, H, n, D, generator=generator, dtype=dtype, requires_grad=True) for n in (queries, keys, keys)
    ]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Less than all scores: several tiles and blocks."""
    monkeypatch.setattr(_relative_tiles, "ON_CPU", _relative_tiles.Sizes(queries=4, keys=8, heads=2))
    monkeypatch.setattr(_halting, "ON_CPU", _halting.Sizes(queries=8, keys=16, numbers=256))
    monkeypatch.setattr(_halting, "PART", 4)
    monkeypatch.setattr(adaptive_span, "BLOCK", 8)


@pytest.fixture
def compiled():
    torch.compiler.reset()
    # Without a search for what to recompute, which changes no value.
    yield lambda module, **how: torch.compile(module, backend="aot_eager_default_partitioner", fullgraph=True, **how)
    torch.compiler.reset()


@each_case
@pytest.mark.parametrize(("causal", "masked"), [(True, False), (False, True)], ids=["causal", "masked"])
def test_outputs_and_gradients_are_those_of_the_tiles(name, causal, masked, compiled):
    module, mask = Mixing(name, causal).double(), holes(N) if masked else None
    leaves = [*(inputs := drawn()), *module.parameters()]
    results = []
    for call in (compiled(module), module):
        out = unmasked(call(*inputs, mask), mask)
        results.append((out, torch.autograd.grad(out.square().sum(), leaves)))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", IN_TILES)
def test_of_the_last_queries_and_any_length(name, compiled):
    module = Mixing(name, causal=True).double().eval()
    call = compiled(module, dynamic=True)
    with torch.no_grad():
        for queries, keys in ((20, 53), (29, 41)):
            inputs = drawn(queries, keys)
            torch.testing.assert_close(call(*inputs), module(*inputs))


@pytest.mark.parametrize("name", IN_TILES)
def test_memory_is_less_than_that_of_all_scores(name, compiled, monkeypatch):
    monkeypatch.setattr(_relative_tiles, "ON_CPU", _relative_tiles.Sizes(queries=32, keys=64, heads=3))
    monkeypatch.setattr(_halting, "ON_CPU", _halting.Sizes(queries=64, keys=64, numbers=2**14))
    call = compiled(Mixing(name, causal=True), dynamic=False)
    inputs = drawn(512, 512, torch.float32)

    def step():
        torch.autograd.grad(call(*inputs).sum(), inputs)

    step()  # which compiles it
    assert peak_memory(step) < 4 * 2 * H * 512**2  # of one number for each pair, where some forms hold several


@pytest.mark.parametrize("name", [*IN_TILES, *PATTERN])
def test_with_dropout_the_backward_pass_drops_the_same_weights(name, compiled):
    module, (q, k, v) = Mixing(name, causal=True, dropout=0.4).double().train(), drawn()
    call = compiled(module)
    torch.manual_seed(0)
    out, g = call(q, k, v), torch.randn(2, H, N, D, dtype=torch.float64)
    (of_v,) = torch.autograd.grad(out, v, g)
    torch.testing.assert_close((of_v * v).sum(), (out * g).sum())  # the output is linear in v
    assert not torch.equal(call(q, k, v), out)
    torch.manual_seed(0)
    assert torch.equal(call(q, k, v), out)


def test_spans_are_read_as_the_operator_runs(compiled, monkeypatch):
    module, windows = Mixing("adaptive_span", causal=True).double().eval(), []
    plain = _by_distance.forward
    monkeypatch.setattr(_by_distance, "forward", lambda *given: windows.append(given[-1].window) or plain(*given))
    call = compiled(module)
    for z in (0.0, 0.5):
        torch.nn.init.constant_(module.mechanism.z, z)
        call(*drawn())
        assert windows.pop() == module.mechanism.reach


def test_dacs_reads_no_more_blocks_than_elsewhere(compiled, monkeypatch):
    module, blocks = Mixing("dacs", causal=False).double().eval(), []
    plain = _halting._Tile.weights
    monkeypatch.setattr(_halting._Tile, "weights", lambda *given: blocks.append(given[1]) or plain(*given))
    module(*drawn(N, 200))
    read, blocks[:] = blocks.copy(), []
    compiled(module)(*drawn(N, 200))
    assert blocks == read
    assert max(read) < 100


@each_case
def test_an_exported_program_has_operators_of_torch_alone(name):
    module, skewed = Mixing(name, causal=True).double().eval(), name in ("transformer_xl", "full with huang")
    free = None if skewed else ({0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC},) * 3
    with torch.no_grad():
        program = torch.export.export(module, tuple(drawn()), dynamic_shapes=free)
        for length in (N,) if skewed else (N, 11):  # in tiles, and of few queries
            inputs = drawn(length, length)
            torch.testing.assert_close(program.module()(*inputs), module(*inputs))
    assert not [node for node in program.graph.nodes if "greenformers" in str(node.target)]
