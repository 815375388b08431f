"""What is particular to Routing, Sinkhorn, adaptive span and DACS, and faults of their peers that they do not have."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases import draw, holes, unmasked
from rows import DIM, HEADS, MAX_LEN
from torch import Tensor

from greenformers.attention import Attention, Shape, _halting, _relative_tiles, adaptive_span, build, dacs
from greenformers.measure.flops import flops
from greenformers.model import GreenformerConfig
from greenformers.model.heads import GreenformerForCausalLM
from greenformers.model.memory import SegmentMemory

N = 13


def make(name: str, causal: bool = False, **options) -> Attention:
    torch.manual_seed(0)
    return build(name, Shape(HEADS, DIM, MAX_LEN, causal=causal), **options).double()


# Sinkhorn.


@pytest.mark.parametrize("options", [{}, {"cut": 2}])
def test_sinkhorn_mixes_values_and_not_keys(options):
    """sinkhorn-transformer gives its keys as values without SortCut."""
    module = make("sinkhorn", block=4, **options).eval()
    q, k, v = draw(N, N)
    torch.testing.assert_close(module(q, k, 3 * v), 3 * module(q, k, v))
    assert not module(q, k, torch.zeros_like(v)).any()


def permutation(module: Attention, q: Tensor, k: Tensor) -> Tensor:
    blocks = [x.unflatten(2, (-1, module.block)) for x in (q, k)]
    keep = torch.ones(1, blocks[0].shape[2], module.block, dtype=torch.bool)
    return module._permutation(*blocks, keep, keep, True, None)


def test_sinkhorn_finds_the_blocks_that_belong_together():
    """Block i's queries are the keys of block order[i]: rows and columns sum to 1, and its match takes nearly all."""
    torch.manual_seed(0)
    sure = {"block": 4, "noise": False, "temperature": 0.05, "iterations": 30, "sort": "products"}
    module = build("sinkhorn", Shape(2, 16, 20), **sure).double().eval()
    order = torch.tensor([3, 0, 4, 1, 2])
    k = torch.randn(1, 2, 5, 1, 16, dtype=torch.float64).expand(-1, -1, -1, 4, -1)
    P = permutation(module, k[:, :, order].flatten(2, 3), k.flatten(2, 3))
    torch.testing.assert_close(P.sum(2), torch.ones(1, 2, 5, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(P.sum(3), torch.ones(1, 2, 5, dtype=torch.float64), atol=1e-2, rtol=0)
    assert P.argmax(3).tolist() == [[order.tolist()] * 2]
    assert P.amax(3).min() > 0.9


def test_the_sorting_network_can_say_any_order():
    """Block i holds the unit vector i, and W_1 leaves it as it is: row i of W_2 says whom it is matched with."""
    sure = {"block": 4, "noise": False, "temperature": 0.05, "iterations": 30}
    module = build("sinkhorn", Shape(1, 16, 20), **sure).double().eval()
    order = torch.tensor([3, 0, 4, 1, 2])
    with torch.no_grad():
        module.W_1.copy_(torch.eye(16))
        module.W_2.zero_()[0, torch.arange(5), order] = 1.0
    k = torch.eye(16, dtype=torch.float64)[:5].repeat_interleave(4, 0)[None, None]
    P = permutation(module, torch.randn(1, 1, 20, 16).double(), k)
    torch.testing.assert_close(P.sum(3), torch.ones(1, 1, 5, dtype=torch.float64), atol=1e-2, rtol=0)
    assert P.argmax(3).tolist() == [[order.tolist()]]
    assert P.amax(3).min() > 0.9
    # Behind padding the same, as blocks are counted from the first of the text.
    torch.manual_seed(0)
    values, longer = torch.randn(1, 1, 16, 16).double(), F.pad(k[:, :, :16], (0, 0, 4, 0))
    mask = torch.arange(20)[None] >= 4
    alone = module(k[:, :, :16], k[:, :, :16], values)
    padded = module(longer, longer, F.pad(values, (0, 0, 4, 0)), mask)
    torch.testing.assert_close(padded[:, :, 4:], alone)


def test_sinkhorn_draws_noise_in_training_alone():
    module = make("sinkhorn", block=4)
    q, k, v = draw(N, N)
    assert not torch.equal(module(q, k, v), module(q, k, v))
    module.eval()
    assert torch.equal(module(q, k, v), module(q, k, v))


def test_sinkhorn_does_not_see_how_long_the_padding_is():
    """Blocks of nothing but padding take no part in the sorting (sinkhorn-transformer: 0.15 off)."""
    module = make("sinkhorn", block=4, noise=False)
    q, k, v = draw(N, N)
    mask = torch.arange(N).expand(2, -1) < 8
    short = module(q[:, :, :8], k[:, :, :8], v[:, :, :8])
    torch.testing.assert_close(module(q, k, v, mask)[:, :, :8], short)


# Routing.


def normal(x: Tensor) -> Tensor:
    return F.layer_norm(x, (DIM,))


def test_centroids_follow_what_is_assigned_to_them():
    """Roy 2020, 4.1: mu = decay mu + (1 - decay) mean of queries and keys, without padding, and in training alone."""
    module = make("routing", clusters=3, decay=0.9)
    q, k, v = draw(N, N)
    mask, before = holes(N), module.centroids.clone()
    module.eval()(q, k, v, mask)
    module.update_()
    assert torch.equal(module.centroids, before)
    module.train()(q, k, v, mask)
    assert torch.equal(module.centroids, before)  # statistics change in update_ alone
    module.update_()
    for head in range(HEADS):
        rows = torch.cat([normal(x)[:, head][mask] for x in (q, k)])
        nearest = (rows @ before[head].T).argmax(1)
        for cluster in range(3):
            own = rows[nearest == cluster]
            expected = before[head, cluster] if not len(own) else 0.9 * before[head, cluster] + 0.1 * own.mean(0)
            torch.testing.assert_close(module.centroids[head, cluster], expected)
    assert "centroids" in module.state_dict()


def test_two_passes_of_a_step_count_once():
    """As of a layer that is computed again for its backward pass: the mean is the same."""
    moved = []
    for times in (1, 2):
        module = make("routing", clusters=3, decay=0.5)
        for _ in range(times):
            module(*draw(N, N))
        module.update_()
        moved.append(module.centroids)
    torch.testing.assert_close(*moved)


def test_the_commitment_loss():
    module = make("routing", clusters=3, commitment=0.25)
    q, k, v = draw(N, N)
    mask = holes(N)
    total = torch.zeros(())
    for x in (q, k):
        far = [
            (row - module.centroids[head][(module.centroids[head] @ row).argmax()]).square().mean()
            for head in range(HEADS) for row in normal(x)[:, head][mask]
        ]  # fmt: skip
        total = total + torch.stack(far).mean() / 2
    out, loss = module.forward_with_loss(q, k, v, mask)
    torch.testing.assert_close(loss, 0.25 * total)
    torch.testing.assert_close(out, module(q, k, v, mask))


def test_one_cluster_of_all_is_full_attention_of_normal_vectors():
    q, k, v = draw(N, N)
    expected = F.scaled_dot_product_attention(normal(q), normal(k), v)
    torch.testing.assert_close(make("routing", clusters=1)(q, k, v), expected)


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_every_query_attends_keys_of_one_cluster_at_least(masked):
    """In the paper those that are among the w nearest of no centroid get 0."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, HEADS, 148, DIM).double()
    mask = holes(148) if masked else None
    there = torch.ones(2, 148, dtype=torch.bool) if mask is None else mask
    shape = Shape(HEADS, DIM, 148)
    for every in (True, False):
        out = build("routing", shape, every_query=every).double()(q, k, v.abs() + 1, mask)
        nothing = (out == 0).all(-1).transpose(1, 2)[there]
        assert nothing.any() == (not every)
    weights = build("routing", shape).double().weights(q, k, mask)[0]["v"].transpose(1, 2)[there]
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@pytest.mark.parametrize("name", ["routing", "reformer"])
def test_what_was_chosen_can_be_given(name):
    """With the choice of other inputs the output is another one; with its own the same."""
    module = make(name, **({"clusters": 3} if name == "routing" else {"chunk": 2, "n_buckets": 6}))
    inputs, other = draw(N, N), draw(N, N, seed=5)
    assert torch.equal(module(*inputs, choice=module.choose(*inputs)), module(*inputs))
    assert not torch.equal(module(*inputs, choice=module.choose(*other)), module(*inputs))


# Adaptive span.


@pytest.mark.parametrize("causal", [False, True])
def test_a_full_span_is_full_attention(causal):
    module = make("adaptive_span", causal, init=1.0, position_term=False, include_self=True)
    full = make("full", causal)
    given = draw(N, N)
    torch.testing.assert_close(module(*given), full(*given))
    torch.testing.assert_close(module(*given, holes(N)), full(*given, holes(N)))


@pytest.mark.parametrize(
    "options", [{}, {"position_term": False}, {"dynamic": True}], ids=["", "spans alone", "dynamic"]
)
@pytest.mark.parametrize("include_self", [False, True], ids=["", "itself too"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_tiles_of_queries_are_the_whole(causal, options, include_self, masked, monkeypatch):
    """Long enough for tiles and blocks, the last one short; beside the formula, with gradients."""
    monkeypatch.setattr(_relative_tiles, "ON_CPU", _relative_tiles.Sizes(queries=32, keys=48, heads=2))
    monkeypatch.setattr(adaptive_span, "BLOCK", 32)
    N, dynamic = 150, "dynamic" in options
    torch.manual_seed(0)
    shape = Shape(2, 8, N, causal=causal)
    module = build("adaptive_span", shape, span=40, ramp=7, include_self=include_self, **options).double()
    with torch.no_grad():
        (module.b if dynamic else module.z).copy_(torch.tensor([-1.0, 0.5] if dynamic else [0.2, 0.9]))
        if module.position_term:
            module.p.normal_()
    q, k, v = torch.randn(3, 2, 2, N, 8, dtype=torch.float64).requires_grad_().unbind()
    inputs = {"inputs": torch.randn(2, N, 16, dtype=torch.float64)} if dynamic else {}
    mask = None
    if masked:
        mask = torch.rand(2, N, generator=torch.Generator().manual_seed(1)) > 0.2
        mask[0, 50:110] = False  # some see no key
    leaves = [q, k, v, *module.parameters()]
    gradients = []
    for call in (module, partial(adaptive_span.reference, module)):
        out = unmasked(call(q, k, v, mask, **inputs), mask)
        weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
        gradients.append((out, torch.autograd.grad((out * weight).sum(), leaves, retain_graph=True)))
    torch.testing.assert_close(*(out for out, _ in gradients))
    torch.testing.assert_close(*(given for _, given in gradients))
    if causal:  # the last ones, and what is before all that they see is left out
        few, last = q[:, :, 90:], {name: x[:, 90:] for name, x in inputs.items()}
        expected = adaptive_span.reference(module, few, k, v, mask, **last)
        torch.testing.assert_close(module(few, k, v, mask, **last), expected)


def test_spans_of_the_input_of_the_layer():
    """A network gives it; a bare call reads the queries in its place."""
    options = {"dynamic": True, "span": 24, "ramp": 4}
    config = GreenformerConfig(
        vocab_size=16, hidden_size=32, num_attention_heads=2, intermediate_size=32, num_hidden_layers=2,
        max_position_embeddings=64, attention="adaptive_span", attention_options=options, hidden_dropout_prob=0.0,
    )  # fmt: skip
    model = GreenformerForCausalLM(config).eval()
    given, layer = [], model.decoder.layers[1]
    layer.attention.mechanism.register_forward_pre_hook(
        lambda _, _args, kwargs: given.append(kwargs["inputs"]), with_kwargs=True
    )
    layer.attention.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    ids = torch.randint(16, (1, 40))
    whole = model(ids).logits
    assert layer.attention.mechanism.p is model.decoder.layers[0].attention.mechanism.p
    assert given[-1].shape == (1, 40, 32)
    past = model(ids[:, :25], use_cache=True).past_key_values
    torch.testing.assert_close(model(ids[:, 25:], past_key_values=past).logits, whole[:, 25:])
    assert given[-1].shape == (1, 15, 32)


@pytest.mark.parametrize("init", [0.0, 0.5])
def test_a_segment_sees_the_memory_as_far_as_its_span(init):
    """Segments one after the other are the whole where the memory is as long as the spans; it is read no farther."""
    options = {"span": 12, "ramp": 4, "init": init}
    config = GreenformerConfig(
        vocab_size=16, hidden_size=32, num_attention_heads=2, intermediate_size=32, num_hidden_layers=2,
        max_position_embeddings=64, attention="adaptive_span", attention_options=options, hidden_dropout_prob=0.0,
        memory_length=24,
    )  # fmt: skip
    torch.manual_seed(0)
    model = GreenformerForCausalLM(config).eval()
    mechanism = model.decoder.layers[0].attention.mechanism
    assert mechanism.reach == 4 + 12 * init
    keys = []
    mechanism.register_forward_pre_hook(lambda _, _args, kwargs: keys.append(kwargs["k"].shape[2]), with_kwargs=True)
    ids = torch.randint(16, (2, 60))
    whole, memory, parts = model(ids).logits, SegmentMemory(24), []
    for segment in ids.split(20, 1):
        out = model.decoder(segment, memory=memory)
        memory = out.memory
        parts.append(model.head(out, None).logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    assert keys == [60, 20, 20 + mechanism.reach, 20 + mechanism.reach]


def test_short_spans_cost_less():
    costs = {}
    for init in (0.0, 0.25, 1.0):
        module = build("adaptive_span", Shape(2, 16, 2048, causal=True), init=init)
        given = torch.randn(3, 1, 2, 2048, 16)
        costs[init] = flops(lambda module=module, given=given: module(*given).sum())
    assert costs[0.0] < 0.6 * costs[0.25] < 0.4 * costs[1.0]


def test_the_loss_of_spans_and_their_bounds():
    module = make("adaptive_span", init=0.5, penalty=0.25, span=8)
    out, loss = module.forward_with_loss(*draw(N, N))
    assert loss.item() == pytest.approx(0.25 * 8 * 0.5)
    torch.testing.assert_close(out, module(*draw(N, N)))
    with torch.no_grad():
        module.z.copy_(torch.tensor([-0.5, 0.5, 1.5]))
    module.update_()
    assert module.z.tolist() == [0.0, 0.5, 1.0]
    module = make("adaptive_span", dynamic=True, penalty=0.25, span=8)
    (q, k, v), mask = draw(N, N), holes(N)
    z = torch.sigmoid(q.transpose(1, 2).flatten(2) @ module.v.T + module.b)
    torch.testing.assert_close(module.forward_with_loss(q, k, v, mask)[1], 0.25 * 8 * z[mask].mean())


@pytest.mark.slow
def test_a_span_becomes_short_where_little_is_needed():
    """The token three back is to be told: heads that began with all of 256 look less far, and cost less, afterwards."""
    torch.manual_seed(0)
    options = {"init": 1.0, "penalty": 2e-3, "ramp": 8}
    config = GreenformerConfig(
        vocab_size=16, hidden_size=32, num_attention_heads=2, intermediate_size=32, num_hidden_layers=1,
        max_position_embeddings=256, attention="adaptive_span", attention_options=options, hidden_dropout_prob=0.0,
        initializer_range=0.2, residual="pre",
    )  # fmt: skip
    model = GreenformerForCausalLM(config).train()
    mechanism = model.decoder.layers[0].attention.mechanism
    spans = [parameter for name, parameter in model.named_parameters() if name.endswith(".z")]
    others = [parameter for name, parameter in model.named_parameters() if not name.endswith(".z")]
    optimiser = torch.optim.AdamW([{"params": others, "lr": 1e-2}, {"params": spans, "lr": 3e-2}])
    before = flops(lambda: model(torch.zeros(1, 256, dtype=torch.long)).logits)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        ids = torch.randint(16, (2, 256), generator=generator)
        logits = model(ids).logits
        loss = F.cross_entropy(logits[:, 3:].flatten(0, 1), ids[:, :-3].flatten())
        (loss + model.decoder(ids).auxiliary_loss).backward()
        optimiser.step()
        optimiser.zero_grad()
        mechanism.update_()
    assert loss.item() < 0.3
    assert mechanism.z.max() < 0.4
    assert flops(lambda: model(torch.zeros(1, 256, dtype=torch.long)).logits) < before


# DACS.


def test_dacs_reads_until_it_has_enough():
    module = make("dacs")
    q, k, _ = draw(N, N)
    weights = module(q, k, torch.eye(N, dtype=torch.float64)[:, :DIM].expand(2, HEADS, -1, -1))
    a = torch.sigmoid(q @ k.mT / DIM**0.5)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        stop = next((n for n in range(1, N + 1) if a[b, h, i, :n].sum() >= 1), N)
        expected = torch.cat([a[b, h, i, :stop], torch.zeros(N - stop)])[:DIM]
        torch.testing.assert_close(weights[b, h, i], expected)


def test_dacs_computes_no_more_than_is_read():
    """2,048 keys of which each query needs an eighth: the products are those of the blocks up to there."""
    torch.manual_seed(0)
    shape = Shape(2, 16, 2048, cross=True)
    module, (q, v) = build("dacs", shape), torch.randn(2, 1, 2, 2048, 16)
    costs, read = [], []
    for weight in (1e-6, 8 / 2048):  # of every key
        logit = math.log(weight / (1 - weight))
        ones, keys = torch.ones_like(q), torch.full_like(q, logit / 4)  # q k / sqrt(16) = logit
        read.append(module.stops(ones, keys).double().mean().item() / 2048)
        costs.append(flops(lambda keys=keys, ones=ones: module(ones, keys, v).sum()))
    assert read[0] == 1.0
    assert read[1] == pytest.approx(1 / 8, rel=0.02)
    assert costs[1] < 0.3 * costs[0]


def test_dacs_reads_no_padding_behind_the_last_kept_key_and_nothing_for_queries_that_are_left_out():
    module = build("dacs", Shape(HEADS, DIM, 40, cross=True), threshold=100.0)
    q, k, _ = draw(5, 40)
    key_mask = torch.arange(40) < torch.tensor([[7], [40]])
    query_mask = torch.tensor([[True, True, False, True, False]] * 2)
    stops = module.stops(q, k, key_mask, query_mask=query_mask)
    assert torch.equal(stops, (key_mask.sum(1)[:, None, None] * query_mask[:, None]).expand_as(stops))


@pytest.mark.parametrize("synchronous", [False, True])
def test_dacs_in_tiles_and_blocks_is_that_at_once(synchronous, monkeypatch):
    """Of more queries and keys than a tile and a block hold, some of which halt in each, with gradients."""
    monkeypatch.setattr(_halting, "ON_CPU", _halting.Sizes(queries=8, keys=16, numbers=256))
    monkeypatch.setattr(_halting, "PART", 4)
    torch.manual_seed(0)
    module = build("dacs", Shape(3, 5, 67, causal=True), threshold=9.3, synchronous=synchronous).double()
    q, k, v = (torch.randn(2, 3, 67, 5).double().requires_grad_() for _ in range(3))
    out = module(q, k, v)
    expected = dacs.reference(module, q, k, v)
    torch.testing.assert_close(out, expected)
    weight = torch.randn_like(out)
    own, others = (torch.autograd.grad((x * weight).sum(), (q, k, v)) for x in (out, expected))
    torch.testing.assert_close(own, others)
    stop = module.stops(q, k)
    assert (stop[:, :, -1] < 67).all()
    assert len(stop.unique()) > 10
    if synchronous:
        assert torch.equal(stop, stop[:, :1].expand_as(stop))


def test_dacs_may_look_ahead_without_limit_in_training():
    module = build("dacs", Shape(HEADS, DIM, 40, cross=True), look_ahead=2, limit="inference").double()
    q, k, _ = draw(5, 40)
    k = k - 100 * q.mean(2, keepdim=True)
    assert module.train().stops(q, k).max() > 10
    assert module.eval().stops(q, k).amax((0, 1)).tolist() == [2, 4, 6, 8, 10]


def test_dacs_needs_nothing_of_what_comes_later():
    """With a limit of 2 the first query knows no more than 2 keys, the second 4."""
    module = build("dacs", Shape(HEADS, DIM, 40, cross=True), look_ahead=2).double()
    q, k, v = draw(5, 40)
    k = k - 100 * q.mean(2, keepdim=True)  # nobody has enough by itself
    out = module(q, k, v)
    for i in range(5):
        reach = 2 * (i + 1)
        torch.testing.assert_close(module(q, k[:, :, :reach], v[:, :, :reach])[:, :, i], out[:, :, i])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sinkhorn", {"block": 0}, "block must be at least 1, got 0"),
        ("sinkhorn", {"cut": 0}, "cut must be at least 1, got 0"),
        ("sinkhorn", {"sort": "sums"}, "sort must be network or products, got 'sums'"),
        ("sinkhorn", {"temperature": 0}, "temperature must be above 0, got 0"),
        ("routing", {"clusters": 0}, "clusters must be at least 1, got 0"),
        ("routing", {"decay": 1.5}, r"decay must be in 0\.\.1, got 1\.5"),
        ("routing", {"commitment": -1}, "commitment must be at least 0, got -1"),
        ("adaptive_span", {"init": 2}, r"init must be in 0\.\.1, got 2"),
        ("adaptive_span", {"ramp": 0}, "ramp must be at least 1, got 0"),
        ("adaptive_span", {"penalty": -1}, "penalty must be at least 0, got -1"),
        ("dacs", {"look_ahead": 0}, "look_ahead must be at least 1, got 0"),
        ("dacs", {"threshold": 0}, "threshold must be above 0, got 0"),
        ("dacs", {"look_ahead": 2, "limit": "never"}, "limit must be always or inference, got 'never'"),
        ("dacs", {"limit": "inference"}, "limit says when look_ahead holds: give one"),
        *((name, {"dropout": 1}, r"dropout must be in \[0, 1\), got 1") for name in ("sinkhorn", "routing", "dacs")),
    ],
)
def test_options_out_of_range(name, options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make(name, **options)


def test_what_has_no_causal_form():
    with pytest.raises(ValueError, match="sinkhorn has no causal form with cut"):
        make("sinkhorn", causal=True, cut=2)
    with pytest.raises(ValueError, match="routing has no causal form without every_query"):
        make("routing", causal=True, every_query=False)


@pytest.mark.parametrize(
    ("name", "options"), [("reformer", {"chunk": 4, "n_buckets": 6, "rounds": 1}), ("routing", {"clusters": 5})]
)
def test_who_sees_whom_depends_on_the_future(name, options):
    """Which is why causal forms cut each bucket or cluster: a later token changes which earlier ones are seen."""
    torch.manual_seed(0)
    module = build(name, Shape(1, 24, 24), **options, seed=0).eval()
    q, k = torch.randn(2, 1, 1, 24, 24)
    other = [torch.cat([x[:, :, :-1], torch.randn(1, 1, 1, 24)], 2) for x in (q, k)]
    seen = [module(*given, torch.eye(24)[None, None])[..., :-1, :-1] > 0 for given in ((q, k), other)]
    assert not torch.equal(*seen)


def test_spans_that_come_from_the_input_take_no_first_span():
    with pytest.raises(ValueError, match="init must be 0 with dynamic"):
        build("adaptive_span", Shape(2, 8, 64), dynamic=True, init=1.0)


def test_dense_synthesizers_of_short_texts_do_not_make_scores_of_long_ones():
    x = torch.randn(2, 2, 16, 8)
    costs = [
        flops(partial(build("synthesizer_factorized_dense", Shape(2, 8, length)), x, x, x)) for length in (64, 4096)
    ]
    assert costs[1] < 4 * costs[0]
