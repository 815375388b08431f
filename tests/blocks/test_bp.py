"""BP-Transformer beside a naive reference: nodes and edges walked one by one, as the definition says."""

import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from greenformers.blocks import Size, _bp_graph, build
from greenformers.measure.flops import flops

EXACT = {"rtol": 1e-9, "atol": 1e-11}


def make(n=37, *, width=6, heads=2, causal=False, layers=1, **options):
    """Layers with parameters far from their first values."""
    torch.manual_seed(3)
    sizes = [Size(width, heads, 11, n, causal, layer=layer, layers=layers + 1) for layer in range(layers)]
    stack = nn.ModuleList(build("bp", size, **options) for size in sizes).double()
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.7)
    return stack


def run(stack, x, mask=None):
    memory = None
    for layer in stack:
        x, memory = layer(x, mask, memory)
    return x, memory


def draw(n, batch=3, width=6, seed=0):
    return torch.randn(batch, n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def holes(n, batch=3):
    """Masks with holes; one keeps all, and one, of two tokens or more, a single token."""
    mask = torch.rand(batch, n, generator=torch.Generator().manual_seed(n)) < 0.6
    mask[0], mask[1] = True, torch.arange(n) == n // 2
    return mask


# The reference: a node is (level, index).


def levels_of(n):
    counts = [n]
    while counts[-1] > 1:
        counts.append(math.ceil(counts[-1] / 2))
    return counts


def covered(node, n):
    level, j = node
    return set(range(j * 2**level, min((j + 1) * 2**level, n)))


def walk(start, step, k, counts):
    """(node, level of the place, place) on one side: step 1 goes right, -1 left."""
    edges, level, p, child = [], 0, start, None
    while child is not None or 0 <= p < counts[level]:
        places = [] if child is None else [child]
        while len(places) < k and 0 <= p < counts[level]:
            places.append((level, p))
            p += step
        edges += [(node, level, i) for i, node in enumerate(places)]
        child = None
        if 0 <= p < counts[level]:
            covers_seen = p % 2 == (1 if step == 1 else 0)
            child = (level, p) if covers_seen else None
            p = (p + step) // 2 if covers_seen else p // 2
        else:
            break
        level += 1
    return edges


def edges_of(i, n, k, clip, causal):
    """(node, label) of what token i sees."""
    counts, label = levels_of(n), lambda level: (2 * k + 1) * min(level, clip)
    edges = [((0, i), 0)]
    edges += [(node, label(level) + 2 * place + 1) for node, level, place in walk(i - 1, -1, k, counts)]
    if not causal:
        edges += [(node, label(level) + 2 * place + 2) for node, level, place in walk(i + 1, 1, k, counts)]
    return edges


def naive(layer, x, mask=None, memory=None):
    """One layer of one sequence: (N, d), (N,), (S, d) or None."""
    n, heads, k = len(x), layer.size.heads, layer.places
    mask = torch.ones(n, dtype=torch.bool) if mask is None else mask
    nodes = [(level, j) for level, count in enumerate(levels_of(n)) for j in range(count)]
    tokens = [[i for i in sorted(covered(node, n)) if mask[i]] for node in nodes]
    if memory is None:
        zero = torch.zeros_like(x[0])
        memory = [torch.stack([x[i] for i in some]).mean(0) if some else zero for some in tokens[n:]]
    H = torch.stack([*x, *memory])
    q, key, v = (project(H).view(len(H), heads, -1) for project in (layer.q, layer.k, layer.v))
    rows = []
    for row, (level, j) in enumerate(nodes):
        if level:
            edges = [((0, i), (2 * k + 1) * min(level, layer.clip)) for i in covered((level, j), n)]
        else:
            edges = edges_of(j, n, k, layer.clip, layer.size.causal)
        seen = [(nodes.index(node), label) for node, label in edges]
        seen = [(column, label) for column, label in seen if tokens[column]]
        if not seen:
            rows.append(torch.zeros_like(x[0]))
            continue
        columns = [column for column, _ in seen]
        a = torch.stack([layer.labels[label] for _, label in seen])
        scores = torch.einsum("hc,ehc->he", q[row], key[columns] + a[:, None]) / math.sqrt(q.shape[2])
        rows.append(torch.einsum("he,ehc->hc", scores.softmax(-1), v[columns]).flatten())
    Z = layer.attention_norm(H + layer.output(torch.stack(rows)))
    H = layer.feed_forward_norm(Z + layer.feed_forward(Z))
    return H[:n], H[n:]


def naive_run(stack, x, mask=None):
    """Of each sequence by itself, moved so that the first kept token comes first."""
    results = []
    for b in range(len(x)):
        first, memory = 0 if mask is None else int(mask[b].int().argmax()), None
        sequence, own_mask = x[b].roll(-first, 0), None if mask is None else mask[b].roll(-first)
        for layer in stack:
            sequence, memory = naive(layer, sequence, own_mask, memory)
        results.append((sequence.roll(first, 0), memory))
    return tuple(map(torch.stack, zip(*results, strict=True)))


def visible(mask, n):
    """Which spans cover a kept token, counted from the first."""
    mask = [row.roll(-int(row.int().argmax())) for row in mask]
    nodes = [(level, j) for level, count in enumerate(levels_of(n)) for j in range(count)][n:]
    return torch.tensor([[any(row[i] for i in covered(node, n)) for node in nodes] for row in mask], dtype=torch.bool)


@pytest.mark.parametrize(
    ("n", "k", "tile"),
    [
        *[(1, 1, 32), (1, 3, 2), (2, 1, 32), (2, 3, 1), (5, 1, 2), (5, 2, 32), (13, 1, 4), (13, 2, 32), (13, 3, 1)],
        *[(37, 1, 8), (37, 3, 32), (71, 2, 8)],
    ],
)
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_it_is_the_definition(n, k, tile, masked, causal, monkeypatch):
    monkeypatch.setattr(_bp_graph, "TILE", tile)
    # The reference is slow: of long sequences one without a mask, and those two whose masks have holes.
    batch = 3 if n < 30 else 2 if masked else 1
    stack, x = make(n, causal=causal, layers=2, k=k, clip=2 if n == 13 else None), draw(n, batch)
    mask = holes(n)[-batch:] if masked else None
    keep = torch.ones(batch, n, dtype=torch.bool) if mask is None else mask
    keep = torch.cat([keep, visible(keep, n)], 1)[..., None]
    weight = draw(2 * len(x[0]) + 8, batch, seed=1)
    results = []
    for call in (run, naive_run):
        given = x.clone().requires_grad_()
        out = torch.cat(call(stack, given, mask), 1)
        out = torch.where(keep, out, 0.0)
        names, parameters = zip(*stack.named_parameters(), strict=True)
        grads = torch.autograd.grad((out * weight[:, : out.shape[1]]).sum(), (given, *parameters))
        results.append({"out": out, "x": grads[0]} | dict(zip(names, grads[1:], strict=True)))
    for name, expected in results[1].items():
        torch.testing.assert_close(results[0][name], expected, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


def seen_of(n, k, causal, clip=99):
    """The nodes each token sees, and their labels, from the tables."""
    graph = _bp_graph.graph(torch.empty(1, n, 1), k, clip, causal)
    nodes = [(level, j) for level, count in enumerate(graph.levels) for j in range(count)]
    for i in range(n):
        labels, seen = graph.labels[i // graph.tile, i % graph.tile].tolist(), graph.seen[i // graph.tile].tolist()
        yield [(nodes[j], label) for j, label in zip(seen, labels, strict=True) if label >= 0]


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (3, 2), (7, 1), (67, 1), (101, 2), (131, 3), (131, 5), (97, 64)])
def test_what_a_token_sees_covers_each_token_once(n, k, causal):
    for i, seen in enumerate(seen_of(n, k, causal)):
        tokens = sorted(token for node, _ in seen for token in covered(node, n))
        assert tokens == list(range(i + 1 if causal else n))
        assert sorted(seen) == sorted(edges_of(i, n, k, 99, causal))


def test_labels_are_distinct_up_to_the_clip():
    for i, seen in enumerate(seen_of(131, 3, False)):
        labels = [label for _, label in seen]
        assert len(set(labels)) == len(labels)
        assert dict(seen)[(0, i)] == 0
    assert {label for seen in seen_of(131, 3, False, clip=1) for _, label in seen} == {0, *range(1, 7), *range(8, 14)}


def test_the_clip_is_by_default_the_level_of_the_root():
    assert [make(n, k=2)[0].labels.shape for n in (1, 2, 5, 64, 65)] == [(5, 3), (10, 3), (20, 3), (35, 3), (40, 3)]
    assert make(64, k=3, clip=0)[0].labels.shape == (7, 3)


def test_a_longer_sequence_than_max_len_uses_the_last_labels():
    stack, x = make(5, k=2), draw(29, 1)
    torch.testing.assert_close(run(stack, x), naive_run(stack, x), **EXACT)


def test_edges_are_as_many_as_levels():
    for n in (61, 509, 1021):
        most = max(len(seen) for seen in seen_of(n, 2, False))
        assert most <= 1 + 2 * 2 * math.ceil(math.log2(n))
        assert most >= 2 * math.log2(n)


def test_cost_grows_as_n_log_n():
    def cost(n):
        block, x = build("bp", Size(8, 2, 8, n), k=2), torch.randn(1, n, 8)
        return flops(lambda: block(x)[0].sum().backward())

    few, many = cost(512), cost(4096)
    assert many / few < 8 * math.log2(4096) / math.log2(512) * 1.05


# Who sees whom.


@pytest.mark.parametrize("k", [1, 3])
def test_causal_to_the_bit(k):
    n = 71
    stack, x = make(n, causal=True, layers=2, k=k), draw(n, 2)
    out = run(stack, x)[0]
    for i in (0, 1, 16, 31, 32, 47, 69):
        other = x.clone()
        other[:, i + 1 :] = 1e4 * draw(n, 2, seed=5)[:, i + 1 :]
        assert torch.equal(run(stack, other)[0][:, : i + 1], out[:, : i + 1])
        mask = torch.ones(2, n, dtype=torch.bool)
        mask[:, i + 1 :: 2] = False
        torch.testing.assert_close(run(stack, x, mask)[0][:, : i + 1], out[:, : i + 1], **EXACT)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_what_is_masked_changes_nothing_of_what_is_kept(causal):
    n = 67
    stack, x, mask = make(n, causal=causal, layers=2, k=2), draw(n), holes(n)
    out = run(stack, x, mask)
    for garbage in (1e4, math.nan):
        other = run(stack, x.masked_fill(~mask[..., None], garbage), mask)
        torch.testing.assert_close(other, out, rtol=0, atol=0)
        assert all(tensor.isfinite().all() for tensor in other)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize(("n", "longer"), [(1, 2), (5, 13), (37, 149), (32, 33), (64, 131)])
def test_more_padding_changes_nothing(n, longer, causal):
    stack, x = make(n, causal=causal, layers=2, k=2), draw(n)
    padded = torch.cat([x, 1e4 * draw(longer - n, seed=7)], 1)
    mask = (torch.arange(longer) < n).expand(3, -1)
    torch.testing.assert_close(run(stack, padded, mask)[0][:, :n], run(stack, x)[0], **EXACT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_where_nothing_is_seen_it_is_finite(dtype):
    mask = holes(41)
    mask[2] = False
    block = build("bp", Size(6, 2, 11, 41), k=2).to(dtype)
    x = draw(41).to(dtype).masked_fill(~mask[..., None], 1e4).requires_grad_()
    out, memory = block(x, mask)
    (out.sum() + memory.sum()).backward()
    assert out.dtype == memory.dtype == dtype
    assert all(tensor.isfinite().all() for tensor in (out, memory, x.grad))


# The module.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"clip": -1}, "clip must be at least 0, got -1"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        make(**options)


def test_a_memory_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"memory must be \(3, 12, 6\), the spans of 11 tokens, got \(3, 11, 6\)"):
        make(11)[0](draw(11), None, draw(11))


def test_spans_are_handed_on_and_start_as_means():
    stack, x = make(13, k=2), draw(13)
    means = [
        x[:, j * 2**level : (j + 1) * 2**level].mean(1) for level in range(1, 5) for j in range(-(-13 // 2**level))
    ]
    out = stack[0](x)
    assert out[1].shape == (3, 7 + 4 + 2 + 1, 6)
    torch.testing.assert_close(stack[0](x, None, torch.stack(means, 1)), out, **EXACT)


def test_dropout_acts_in_training_alone():
    block, x = make(37, dropout=0.5)[0], draw(37)
    torch.manual_seed(0)
    assert not torch.equal(block(x)[0], block(x)[0])
    assert not torch.equal(block(x)[1], block(x)[1])
    assert torch.equal(block.eval()(x)[0], block(x)[0])


def test_tables_made_in_inference_mode_serve_training():
    _bp_graph._graph.cache_clear()
    stack, x = make(23), draw(23)
    with torch.inference_mode():
        out = run(stack, x)[0]
    trained = run(stack, x)[0]
    trained.sum().backward()
    assert torch.equal(trained, out)


def test_it_is_built_without_storage():
    with torch.device("meta"):
        block = build("bp", Size(6, 2, 11, 41))
        assert block(torch.empty(2, 41, 6))[0].shape == (2, 41, 6)
    assert not dict(block.named_buffers())
    block = block.to_empty(device="cpu")
    block.reset_parameters()
    assert 0.015 < block.labels.std() < 0.025


def test_of_tensors_without_content_nothing_is_kept():
    _bp_graph._graph.cache_clear()
    with FakeTensorMode():
        out, memory = build("bp", Size(6, 2, 11, 43), k=2)(torch.randn(2, 43, 6))
    assert (out.shape, memory.shape) == ((2, 43, 6), (2, 22 + 11 + 6 + 3 + 2 + 1, 6))
    assert _bp_graph._graph.cache_info().currsize == 0


def test_the_last_of_several_layers_hands_nothing_on():
    """Its tokens are as those of a layer that does."""
    torch.manual_seed(0)
    last, other = (build("bp", Size(10, 2, 13, 37, layer=layer, layers=3)).double() for layer in (2, 1))
    other.load_state_dict(last.state_dict())
    x, mask = torch.randn(2, 37, 10).double(), torch.rand(2, 37) > 0.3
    for given in (None, mask):
        (out, nothing), (expected, spans) = last(x, given), other(x, given)
        assert nothing is None
        assert spans is not None
        torch.testing.assert_close(out, expected)
