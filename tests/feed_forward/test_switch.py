"""Mixtures of experts, held to the paper by loops over positions; and faults that published code has."""

from math import ceil
from pathlib import Path

import pytest
import torch
from forked import printed
from torch import nn
from transformers import DynamicCache

from greenformers.feed_forward import Size, build
from greenformers.lowrank.experts import ExpertsLinear
from greenformers.measure.flops import flops
from greenformers.model import GreenformerConfig, GreenformerForCausalLM, GreenformerForMaskedLM, GreenformerModel
from greenformers.model.seq2seq import GreenformerForSeq2SeqLM

B, N, D, F, E = 3, 13, 10, 14, 5


def block(*, causal=False, ranks=None, bias=True, scale=6.0, **options):
    """With large weights, so that choices are far from even."""
    torch.manual_seed(0)
    size = Size(D, F, nn.GELU, causal=causal, max_len=17, ranks=ranks or {}, bias=bias)
    module = build("switch", size, **{"experts": E} | options).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(scale) if parameter.dim() > 2 or parameter is module.router else parameter.normal_()
    return module


def inputs(batch=B, length=N, seed=1):
    return torch.randn(batch, length, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def padded(*lengths, length=N):
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def expert(module, e, x):
    """FFN_e(x) of one position, from the weights of the expert."""
    up, down = module.up, module.down
    W, V = (part.weight[e] for part in (up, down))
    inner = W @ x + (0 if up.bias is None else up.bias[e])
    if module.gate is None:
        inner = module.activation(inner)
    else:
        gate = module.gate.weight[e] @ x + (0 if module.gate.bias is None else module.gate.bias[e])
        inner = module.activation(gate) * inner
    return V @ inner + (0 if down.bias is None else down.bias[e])


def oracle(module, x, mask, k, factor=None, least=4, n_of=None, normalised=False):
    """The output, and the loss, by a loop over positions with a counter for each expert."""
    y, chosen, p_sum, squares, positions = torch.zeros_like(x), torch.zeros(E), torch.zeros(E).double(), 0.0, 0
    for b in range(len(x)):
        n = int(mask[b].sum()) if n_of is None else n_of
        most = None if factor is None else max(least, ceil(factor * k * n / E - 1e-9))
        counts = [0] * E
        for t in range(x.shape[1]):
            if not mask[b, t]:
                continue
            logits = module.router @ x[b, t]
            p = logits.exp() / logits.exp().sum()
            best = sorted(range(E), key=lambda e: -p[e].item())[:k]
            gates = [p[e] / sum(p[j] for j in best) if normalised else p[e] for e in best]
            positions, p_sum, squares = positions + 1, p_sum + p, squares + logits.exp().sum().log() ** 2
            for g, e in zip(gates, best, strict=True):
                chosen[e] += 1
                counts[e] += 1
                if most is None or counts[e] <= most:
                    y[b, t] = y[b, t] + g * expert(module, e, x[b, t])
    f, P = chosen / (positions * k), p_sum / positions
    return y, 1e-2 * E * (f * P).sum() + 1e-3 * squares / positions


CASES = {
    "top 1": {},
    "top 2": {"k": 2},
    "all": {"k": E, "capacity": None},
    "dropless": {"capacity": None},
    "tight": {"capacity": 0.6, "least": 1},
    "tight, top 2": {"capacity": [0.5, 0.9], "least": 1, "k": 2},
    "gated": {"gated": True, "k": 2},
    "as they are": {"k": 3, "normalised": False},
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_the_loop_gives(case):
    options, mask = CASES[case], padded(13, 6, 9)
    module = block(**options, jitter=0.0).eval()
    k, factor = options.get("k", 1), options.get("capacity", 2.0)
    factor = factor[1] if isinstance(factor, list) else factor
    given = {"least": options.get("least", 4), "normalised": options.get("normalised", k > 1)}
    (x, x2) = (inputs().requires_grad_() for _ in range(2))
    expected, loss = oracle(module, x2, mask, k, factor, **given)
    y, own = module.forward_with_loss(x, mask)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(own, loss)
    weight = torch.randn_like(y)
    weights = [x, *module.parameters()]
    grads = torch.autograd.grad((y * weight).sum() + own, weights)
    others = torch.autograd.grad((expected * weight).sum() + loss, [x2, *module.parameters()])
    torch.testing.assert_close(grads, others)
    if "tight" in case:
        over = module.held(module.route(x), mask, N).view(B, N, k)[mask] == E
        assert 0 < over.sum() < over.numel()


def test_training_has_its_own_capacity():
    module, mask = block(capacity=[0.5, 1.0], least=1, jitter=0.0), padded(13, 6, 9)
    for training, factor in ((True, 0.5), (False, 1.0)):
        expected, _ = oracle(module, inputs(), mask, 1, factor, least=1)
        torch.testing.assert_close(module.train(training)(inputs(), mask), expected)


def test_a_gate_that_is_one_has_the_gradient_of_the_probability():
    module = block(normalised=True, capacity=None).eval()
    routing = module.route(inputs())
    assert routing.gates.unique().tolist() == [1.0]
    (grad,) = torch.autograd.grad(routing.gates.sum(), module.router, retain_graph=True)
    (log,) = torch.autograd.grad(routing.p.gather(-1, routing.chosen).log().sum(), module.router)
    torch.testing.assert_close(grad, log)


def test_low_rank_experts_are_dense_ones_of_the_products():
    low, dense = block(ranks={"up": 3, "down": 4}, k=2).eval(), block(k=2).eval()
    with torch.no_grad():
        dense.router.copy_(low.router)
        for name in ("up", "down"):
            dense.get_submodule(name).weight.copy_(low.get_submodule(name).weight)
            dense.get_submodule(name).bias.copy_(low.get_submodule(name).bias)
    torch.testing.assert_close(low(inputs()), dense(inputs()))


@pytest.mark.parametrize("options", [{}, {"k": 2, "capacity": 0.7, "least": 1}, {"gated": True}], ids=str)
def test_the_definition_gives_the_same(options):
    module, x, mask = block(**options).eval(), inputs(), padded(13, 6, 9)
    routing = module.route(x)
    held = module.held(routing, mask, N)
    whole = module.reference(x.flatten(0, 1), held, routing.gates)
    torch.testing.assert_close(whole.view_as(x), module(x, mask))


# Extremes.


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"experts": 1}, (13, 6, 9)), ({"k": E}, (13, 6, 9)), ({"capacity": 1e-9, "least": 1}, (13, 6, 9)),
        ({}, (0, 0, 0)), ({"k": 2, "capacity": None}, (0, 0, 0)), ({}, (1, 0, 0)),
    ],
    ids=str,
)  # fmt: skip
def test_extremes(options, lengths):
    module, mask, x = block(**options), padded(*lengths), inputs().requires_grad_()
    y, loss = module.train().forward_with_loss(x, mask)
    assert y.isfinite().all()
    assert not y[~mask].any()
    assert loss.isfinite()
    (y.square().sum() + loss).backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in module.parameters())
    if options == {"experts": 1}:
        square = module.eval().route(x).logits[mask.flatten()].square().mean().item()
        assert loss.item() == pytest.approx(1e-2 + 1e-3 * square, rel=0.1)
    if "capacity" in options and options["capacity"] is not None:  # one place for each expert and sequence
        held = module.held(module.route(x), mask, N).view(B, N)
        assert all((held[b] == e).sum() <= 1 for b in range(B) for e in range(E))


@pytest.mark.parametrize("shape", [(1, D), (1, 1, D), (2, 3, 4, D), (0, 3, D), (2, 0, D)])
def test_any_number_of_positions(shape):
    x = torch.randn(shape, dtype=torch.float64)
    for k in (1, 2):
        module = block(k=k).eval()
        assert module(x).shape == x.shape
        single = [module(part[None]) for part in x.flatten(0, -2)]
        if shape[-2] <= 4 and single:  # within the least capacity
            torch.testing.assert_close(torch.cat(single), module(x).flatten(0, -2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts": 0}, "experts must be at least 1, got 0"), ({"k": 0}, r"k must be in 1\.\.5, got 0"),
        ({"k": 6}, r"k must be in 1\.\.5, got 6"), ({"least": 0}, "least must be at least 1, got 0"),
        ({"capacity": 0}, 'capacity must be a number above 0, two of them, None or "default"; got 0'),
        ({"capacity": [1.0]}, "capacity must be a number above 0"), ({"capacity": "full"}, "got 'full'"),
        ({"jitter": 1.0}, r"jitter must be in \[0, 1\), got 1.0"), ({"dropout": -0.1}, "dropout must be in"),
        ({"balance": -1.0}, "balance must be at least 0, got -1.0"), ({"z": -1.0}, "z must be at least 0, got -1.0"),
        ({"spread": 0.0}, "spread must be above 0, got 0.0"), ({"ranks": {"up": 11}}, r"rank must be in 1\.\.10"),
    ],
)  # fmt: skip
def test_what_is_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        block(**options)
    with pytest.raises(ValueError, match=r"capacity must be None in a causal block without a longest length, got 1\.5"):
        build("switch", Size(D, F, causal=True), capacity=1.5)


# Losses, routing in float32, jitter.


def test_the_loss_is_that_of_balance_where_all_experts_get_as_much():
    module = block(z=0.0, balance=0.03, capacity=None).eval()
    module.router.data = torch.eye(D, dtype=torch.float64)[:E] * 50
    x = torch.eye(D, dtype=torch.float64)[torch.arange(3 * E) % E][None]
    assert module.forward_with_loss(x)[1].item() == pytest.approx(0.03)
    worst = torch.eye(D, dtype=torch.float64)[torch.zeros(9, dtype=torch.long)][None]
    assert module.forward_with_loss(worst)[1].item() == pytest.approx(0.03 * E)


def test_a_block_without_weights_of_losses_has_none():
    module = block(balance=0.0, z=0.0)
    assert not module.has_loss
    assert block(balance=0.0).has_loss
    assert block(z=0.0).has_loss


def test_the_router_computes_in_float32():
    module = block(capacity=None).float().eval()
    x = inputs().float()
    with torch.autocast("cpu", torch.bfloat16):
        routing, y = module.route(x), module(x)
    assert routing.p.dtype == torch.float32
    torch.testing.assert_close(routing.logits, module.route(x).logits)
    torch.testing.assert_close(y, module(x), atol=0.1, rtol=0.1)
    half = block(capacity=None).bfloat16().eval()
    assert half.route(x.bfloat16()).p.dtype == torch.float32
    assert half(x.bfloat16()).dtype == torch.bfloat16


def test_jitter_is_for_the_router_alone_and_for_training():
    x, module = inputs(), block(jitter=0.5, capacity=None)
    before, seen = x.clone(), []
    module.up.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    torch.manual_seed(3)
    first = module(x)
    assert torch.equal(x, before), "the input was changed in place"
    rows = {tuple(row.tolist()) for row in x.flatten(0, 1)}
    assert {tuple(row.tolist()) for row in seen[0]} == rows, "experts see numbers with jitter"
    assert not torch.equal(module(x), first)
    module.eval()
    assert torch.equal(module(x), module(x))


def test_dropout_is_of_the_inner_activation():
    torch.manual_seed(0)
    module = block(dropout=0.9, jitter=0.0, capacity=None)
    assert not torch.equal(module(inputs()), module.eval()(inputs()))
    torch.testing.assert_close(module(inputs()), block(jitter=0.0, capacity=None).eval()(inputs()))


def test_initial_weights():
    torch.manual_seed(0)
    module = build("switch", Size(100, 400), experts=4)
    expected = {"router": (0.1 / 100) ** 0.5, "up.weight": (0.1 / 100) ** 0.5, "down.weight": (0.1 / 400) ** 0.5}
    for name, std in expected.items():
        weight = module.get_parameter(name)
        assert weight.abs().max() <= 2 * std
        assert weight.std().item() == pytest.approx(0.88 * std, rel=0.15 if name == "router" else 0.02)
    assert not module.up.bias.any()
    low = build("switch", Size(100, 400, ranks={"up": 20}), experts=4)
    assert low.up.weight.std().item() == pytest.approx(0.88**2 * expected["up.weight"], rel=0.05)


# Padding, the batch and order.


@pytest.mark.parametrize("k", [1, 2])
def test_padding_changes_nothing(k):
    module, x = block(k=k, capacity=0.8, least=1).eval(), inputs()
    expected, loss = module.forward_with_loss(x)
    for left, right in ((0, 7), (5, 0), (3, 4)):
        fill = torch.full((B, left + N + right, D), float("nan"), dtype=torch.float64)
        fill[:, left : left + N] = x
        mask = torch.zeros(B, left + N + right, dtype=torch.bool)
        mask[:, left : left + N] = True
        y, own = module.forward_with_loss(fill, mask)
        torch.testing.assert_close(y[mask], expected.flatten(0, 1))
        assert not y[~mask].any()
        torch.testing.assert_close(own, loss)


def test_neighbours_in_the_batch_change_nothing():
    module, x = block(capacity=0.6, least=1).eval(), inputs()
    torch.testing.assert_close(torch.cat([module(row[None]) for row in x]), module(x))


def test_a_dropped_position_passes_by_the_residual():
    """Norm and residual stand outside: 0 is added, and no norm of the position itself."""
    given = {"feed_forward": "switch", "feed_forward_options": {"capacity": 1e-9, "least": 1, "experts": 2}}
    model = GreenformerModel(config(residual="pre", num_hidden_layers=1, **given)).double().eval()
    ids, layer, seen = tokens(), model.layers[0], {}
    layer.feed_forward_norm.register_forward_pre_hook(lambda _, args: seen.update(x=args[0]))
    layer.register_forward_hook(lambda *given: seen.update(y=given[-1]))
    model(ids)
    dropped = (layer.feed_forward(layer.feed_forward_norm(seen["x"])) == 0).all(-1)
    assert dropped.sum() >= 2 * N - 4
    assert torch.equal(seen["y"][dropped], seen["x"][dropped])


@pytest.mark.parametrize("options", [{"k": 2}, {"k": 2, "capacity": 0.5, "least": 1}], ids=str)
def test_causal_to_the_bit(options):
    """No gradient at all, and in training too: places go to earlier positions first, of any choice."""
    module = block(causal=True, jitter=0.0, **options)
    assert module.capacity is None or module.held(module.route(inputs()), None, N).eq(E).any()
    x = inputs(1).requires_grad_()
    for t in range(N):
        (grad,) = torch.autograd.grad(module(x)[:, t].sum(), x)
        assert not grad[:, t + 1 :].any()
    for t in range(1, N):  # nor does the length matter
        torch.testing.assert_close(module(x[:, :t]), module(x)[:, :t])
    mask = padded(13, 6, 9)
    expected, _ = oracle(module, inputs(), mask, 2, options.get("capacity"), least=1, n_of=17, normalised=True)
    torch.testing.assert_close(module(inputs(), mask), expected)


# What is computed.


def test_what_is_computed_is_counted():
    module, mask = block(capacity=None, k=2).eval(), padded(13, 6, 9)
    rows = 2 * int(mask.sum())
    assert flops(lambda: module(inputs(), mask)) == rows * 4 * D * F + 2 * B * N * D * E
    tight = block(capacity=0.5, least=1).eval()
    held = (tight.held(tight.route(inputs()), mask, N) < E).sum().item()
    assert held < mask.sum()
    assert flops(lambda: tight(inputs(), mask)) == held * 4 * D * F + 2 * B * N * D * E


def test_idle_experts_are_not_computed(monkeypatch):
    module, seen = block(capacity=None).eval(), []
    module.router.data.zero_()
    module.router.data[3] = 1.0
    forward = ExpertsLinear.forward
    monkeypatch.setattr(
        ExpertsLinear, "forward", lambda self, x, routed: (seen.append(routed.counts), forward(self, x, routed))[1]
    )
    module.up.weight.data[[0, 1, 2, 4]] = float("nan")
    y = module(inputs().abs())
    assert seen == [[0, 0, 0, B * N, 0]] * 2
    assert y.isfinite().all()


def test_time_grows_with_the_length_and_not_with_its_square():
    module = block(capacity=None).eval()
    work = [flops(lambda n=n: module(inputs(1, n))) for n in (40, 80, 160)]
    assert work[1] / work[0] == work[2] / work[1] == 2


def test_compiled_and_transformed():
    module = block(k=2, capacity=0.7, least=1).eval()
    x, mask = inputs(), padded(13, 6, 9)
    exported = torch.export.export(module, (x, mask)).module()
    torch.testing.assert_close(exported(x, mask), module(x, mask))
    other, wider = inputs(seed=5), padded(3, 13, 12)
    torch.testing.assert_close(exported(other, wider), module(other, wider))
    grad = torch.func.grad(lambda x: module(x, mask).square().sum())(x)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(grad, torch.autograd.grad(module(leaf, mask).square().sum(), leaf)[0])


def test_second_derivatives():
    module, x = block(k=2, capacity=None, jitter=0.0).eval(), inputs(1, 3).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: module(x), (x,))


# In networks.


def config(**given):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 17, "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 19, "num_hidden_layers": 2,
        "max_position_embeddings": 23, "hidden_dropout_prob": 0.0, "pad_token_id": 0, "feed_forward": "switch",
        "feed_forward_options": {"experts": 4, "k": 2},
    }  # fmt: skip
    return GreenformerConfig(**sizes | given)


def tokens(length=N):
    return torch.randint(1, 17, (2, length), generator=torch.Generator().manual_seed(1))


SEQ2SEQ = {"decoder_layers": 2, "decoder_start_token_id": 1}
MODELS = {
    "masked": (GreenformerForMaskedLM, {}),
    "causal": (GreenformerForCausalLM, {}),
    "seq2seq": (GreenformerForSeq2SeqLM, SEQ2SEQ),
    "reversible": (GreenformerForMaskedLM, {"residual": "reversible"}),
    "shared": (GreenformerForMaskedLM, {"depth": "shared"}),
    "one layer of two": (GreenformerForCausalLM, {"feed_forward": ["gated", "switch"], "feed_forward_options": None}),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_learn_with_the_loss_of_each_layer(name):
    kind, given = MODELS[name]
    options = {"feed_forward_options": [None, {"experts": 4}]} if name == "one layer of two" else {}
    model = kind(config(**given | options))
    blocks = [part for part in model.modules() if type(part).__name__ == "Switch"]
    losses = []
    for part in blocks:
        part.jitter = 0.0
        part.register_forward_hook(lambda *_: pytest.fail("in training its loss is asked for"))

        def noted(*args, forward=part.forward_with_loss, **more):
            losses.append(forward(*args, **more))
            return losses[-1]

        part.forward_with_loss = noted
    task = model.train()(tokens(), labels=tokens()).loss
    task.backward()
    assert len(losses) >= len(blocks)
    own = sum(loss.item() for _, loss in losses[: len(blocks)])
    assert own > 0.9e-2 * len(blocks)
    assert all(part.router.grad.any() for part in blocks)
    for part in blocks:
        part._forward_hooks.clear()
        part.capacity = None if part.capacity is None else (part.capacity[0],) * 2
    assert model.eval()(tokens(), labels=tokens()).loss.item() == pytest.approx(task.item() - own, rel=1e-4)


def test_the_loss_of_each_layer_is_its_own():
    """Pooled over layers, two that collapse into different experts look balanced."""
    model = GreenformerModel(config(feed_forward_options={"experts": 2, "jitter": 0.0, "z": 0.0})).train()
    for layer, expert in zip(model.layers, (0, 1), strict=True):
        layer.feed_forward.router.data.zero_()
        layer.attention_norm.bias.data.fill_(30.0)  # so that inputs have one sign
        layer.feed_forward.router.data[expert] = 1.0
    assert model(tokens()).auxiliary_loss.item() == pytest.approx(2 * 2e-2, rel=1e-3)


def test_recomputed_layers_choose_as_before():
    losses = {}
    for recompute in (False, True):
        model = GreenformerForMaskedLM(config()).train()
        if recompute:
            model.activation_checkpointing_enable()
        torch.manual_seed(5)
        losses[recompute] = model(tokens(), labels=tokens()).loss
        losses[recompute].backward()
        losses[recompute, "grad"] = model.encoder.layers[0].feed_forward.router.grad
    torch.testing.assert_close(losses[True], losses[False])
    torch.testing.assert_close(losses[True, "grad"], losses[False, "grad"])


def test_a_reversible_stack_keeps_the_choice():
    """The input computed back differs by rounding: here by much more, so that choices would change."""
    module = block(k=2, jitter=0.0, capacity=None)
    choice: dict[str, torch.Tensor] = {}
    first = module(inputs(), choice=choice)
    other = inputs() + 0.5 * inputs(seed=7)
    assert not torch.equal(module.route(other).chosen, choice["experts"])
    assert torch.equal(module.route(other, choice).chosen, choice["experts"])
    torch.testing.assert_close(module(inputs(), choice=choice), first)


def test_gradients_of_a_reversible_stack():
    """Those of the same sums by autograd, with the same jitter."""
    options = {"experts": 3, "jitter": 0.3}
    model = GreenformerModel(config(residual="reversible", feed_forward_options=options)).double().train()
    torch.manual_seed(3)
    out = model(tokens())
    routers = [layer.feed_forward.router for layer in model.layers]
    grads = torch.autograd.grad(out.last_hidden_state.square().sum() + out.auxiliary_loss, routers)
    torch.manual_seed(3)
    first = second = model.embedding(tokens())
    loss = 0.0
    for layer in model.layers:
        first = first + layer.attention.output(layer.attention.mix(layer.attention_norm(second), None)[0])
        added, own = layer.feed_forward.forward_with_loss(layer.feed_forward_norm(first))
        second, loss = second + added, loss + own
    y = model.final_norm((first + second) / 2)
    torch.testing.assert_close(y, out.last_hidden_state)
    torch.testing.assert_close(torch.autograd.grad(y.square().sum() + loss, routers), grads)


@pytest.mark.parametrize("beams", [1, 2])
def test_generation_with_a_cache_and_with_padding(beams):
    model = GreenformerForCausalLM(config()).eval()
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": beams, "eos_token_id": None}
    plain = model.generate(tokens(5), use_cache=False, **options)
    assert torch.equal(model.generate(tokens(5), use_cache=True, **options), plain)
    left = torch.cat([torch.zeros(2, 3, dtype=torch.long), tokens(5)], 1)
    longer = model.generate(left, attention_mask=(left > 0).long(), **options)
    assert torch.equal(longer[:, 3:], plain)


def test_a_capacity_takes_no_cache():
    given = {"feed_forward_options": {"capacity": 1.0, "experts": 4, "least": 1}}
    model = GreenformerForCausalLM(config(**given)).eval()
    assert not model.generation_config.use_cache
    assert model.generate(tokens(5), max_new_tokens=3, do_sample=False).shape == (2, 8)
    for kind in ({"use_cache": True}, {"past_key_values": DynamicCache()}):
        with pytest.raises(
            ValueError, match=r"feed_forward or attention reads whole sequences here, .*: use_cache must be False"
        ):
            model(tokens(), **kind)
    both = GreenformerForSeq2SeqLM(config(**given, **SEQ2SEQ)).eval()
    assert not both.generation_config.use_cache
    assert GreenformerForSeq2SeqLM(config(**SEQ2SEQ)).eval().generation_config.use_cache is not False
    out = both(tokens(), decoder_input_ids=tokens(7)).logits
    later = tokens(7).clone()
    later[:, 4:] = 3
    torch.testing.assert_close(both(tokens(), decoder_input_ids=later).logits[:, :4], out[:, :4])


FRESH = """
import sys, torch
from safetensors.torch import load_file
from greenformers.model import GreenformerForMaskedLM
torch.set_num_threads(1)
model = GreenformerForMaskedLM.from_pretrained(sys.argv[1]).eval()
given = load_file(sys.argv[1] + "/expected.safetensors")
with torch.no_grad():
    assert torch.equal(model(given["ids"].clone()).logits, given["logits"])
print(type(model.encoder.layers[1].feed_forward).__name__, model.encoder.layers[1].feed_forward.capacity)
"""


@pytest.mark.usefixtures("one_thread")
def test_reloaded_in_a_fresh_process(tmp_path: Path):
    from safetensors.torch import save_file

    options = {"experts": 3, "k": 2, "capacity": [1.0, 1.5]}
    model = GreenformerForMaskedLM(config(feed_forward_options=options, rank={"up": 4})).eval()
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        save_file({"ids": tokens(), "logits": model(tokens()).logits}, tmp_path / "expected.safetensors")
    assert printed(FRESH, tmp_path).endswith("Switch (1.0, 1.5)\n")


def test_capacity_needs_no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    module = block(capacity=0.6, least=1).float().eval()
    expected = module(inputs().float(), padded(13, 6, 9))

    def refused(_: torch.Tensor) -> torch.Tensor:
        raise TypeError("no float64 here")

    monkeypatch.setattr(torch.Tensor, "double", refused)
    assert torch.equal(module(inputs().float(), padded(13, 6, 9)), expected)
