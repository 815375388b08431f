"""Universal depth, held to both papers by loops over positions; what halts is not computed; no trap at the start."""

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from greenformers.depth import Size, build
from greenformers.depth import universal as file
from greenformers.measure.flops import flops
from greenformers.measure.parameters import parameters
from greenformers.model import (
    GreenformerConfig,
    GreenformerForCausalLM,
    GreenformerForMaskedLM,
    GreenformerForSequenceClassification,
    GreenformerModel,
)
from greenformers.model.seq2seq import GreenformerForSeq2SeqLM
from greenformers.position.sinusoidal import sinusoidal

B, N, D, STEPS = 3, 11, 10, 5
CLOSE = {"atol": 1e-10, "rtol": 1e-10}


def padded(*lengths, length=N):
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def stirred(module, bias=-0.7, seed=1):
    """With a w that is not 0, so that positions halt apart."""
    depths = [part for part in module.modules() if isinstance(part, file.Universal) and part.halts]
    with torch.no_grad():
        for place, depth in enumerate(depths):
            generator = torch.Generator().manual_seed(seed + place)
            depth.weight.copy_(0.2 * torch.randn(len(depth.weight), generator=generator))
            depth.bias.fill_(bias)
    return module.double().eval()


# The papers, by loops.


class Layer(nn.Module):
    """A layer that mixes positions, one at a time for the loops: s_i = tanh(W u_i + mean of V u_j over j <= i)."""

    def __init__(self):
        super().__init__()
        self.own, self.others = (nn.Parameter(torch.randn(D, D, dtype=torch.float64) * 0.5) for _ in range(2))

    def at(self, u, i):
        return torch.tanh(self.own @ u[i] + torch.stack(list(u[: i + 1])).mean(0) @ self.others)

    def forward(self, _, u, running):
        counts = torch.arange(1, u.shape[1] + 1, dtype=u.dtype)[:, None]
        out = torch.tanh(u @ self.own.mT + (u.cumsum(1) / counts) @ self.others)
        return out if running is None else running.take(out)


def act(depth, layer, x):
    """Graves 2016, eq. 5 to 12, as Dehghani 2018 halts each position; one sequence (n, d)."""
    count = len(x)
    place = [sinusoidal(torch.tensor([i]), D, torch.float64)[0] for i in range(count)]
    s, outputs, R = list(x), [torch.zeros(D, dtype=torch.float64)] * count, [None] * count
    total, steps, halted = [0.0] * count, [0] * count, [False] * count
    for n in range(1, depth.size.steps + 1):
        code = sinusoidal(torch.tensor([n]), D, torch.float64)[0]
        u = [s[i] + place[i] + code for i in range(count)]
        new = list(s)
        for i in range(count):
            if halted[i]:
                continue
            p = torch.sigmoid(depth.weight @ u[i] + depth.bias[0])
            new[i], steps[i] = layer.at(u, i), n
            if total[i] + p > 1 - depth.eps or n == depth.size.steps:
                halted[i], R[i] = True, 1 - total[i]
                outputs[i] = outputs[i] + R[i] * new[i]
            else:
                total[i] = total[i] + p
                outputs[i] = outputs[i] + p * new[i]
        s = new
    return torch.stack(outputs), steps, [r if torch.is_tensor(r) else torch.tensor(r).double() for r in R]


def listing(depth, layer, x):
    """Dehghani 2018, appendix C, as Tensor2Tensor runs it: states of halted positions go on changing."""
    count = len(x)
    place = [sinusoidal(torch.tensor([i]), D, torch.float64)[0] for i in range(count)]
    state, y = list(x), [torch.zeros(D, dtype=torch.float64)] * count
    probability = [torch.zeros((), dtype=torch.float64)] * count
    remainders, updates = [torch.zeros((), dtype=torch.float64)] * count, [0] * count
    running, n = [True] * count, 0
    while any(running) and n < depth.size.steps:
        n += 1
        code = sinusoidal(torch.tensor([n]), D, torch.float64)[0]
        u = [state[i] + place[i] + code for i in range(count)]
        weights = []
        for i in range(count):
            p = torch.sigmoid(depth.weight @ u[i] + depth.bias[0])
            weight = torch.zeros((), dtype=torch.float64)
            if running[i]:
                updates[i] += 1
                if probability[i] + p > 1 - depth.eps:
                    running[i] = False
                    remainders[i] = 1 - probability[i]
                    probability[i] = probability[i] + remainders[i]
                    weight = remainders[i]
                else:
                    probability[i] = probability[i] + p
                    weight = p
            weights.append(weight)
        state = [layer.at(u, i) for i in range(count)]
        y = [weights[i] * state[i] + (1 - weights[i]) * y[i] for i in range(count)]
    return torch.stack(y), updates, remainders


ORACLES = {"sum": act, "interpolate": listing}


@pytest.mark.parametrize("mask", [None, padded(11, 4, 7), padded(11, 0, 9)], ids=["whole", "padded", "empty"])
@pytest.mark.parametrize("mix", ORACLES)
def test_it_is_what_the_loop_gives(mix, mask):
    torch.manual_seed(0)
    layer = Layer()
    depth = stirred(build("universal", Size(D, STEPS), mix=mix, tau=0.3)).train()
    depth.weight.data.mul_(4)
    x, x2 = (torch.randn(B, N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    x, x2 = x.requires_grad_(), x2.requires_grad_()
    lengths = [N] * B if mask is None else mask.sum(1).tolist()
    parts = [ORACLES[mix](depth, layer, x2[b, :n]) for b, n in enumerate(lengths) if n]
    gone = depth(x, layer, mask=mask)
    states = gone.x.flatten(0, 1) if mask is None else gone.x[mask]
    expected = torch.cat([part[0] for part in parts])
    torch.testing.assert_close(states, expected)
    steps = gone.steps.flatten() if mask is None else gone.steps[mask]
    assert steps.tolist() == [n for part in parts for n in part[1]]
    assert len(set(steps.tolist())) > 2
    loss = 0.3 * torch.stack([n + r for part in parts for n, r in zip(*part[1:], strict=True)]).mean()
    torch.testing.assert_close(gone.loss, loss)
    weight = torch.randn(states.shape, dtype=torch.float64)
    weights = [*depth.parameters(), *layer.parameters()]
    grads = torch.autograd.grad((states * weight).sum() + gone.loss, [x, *weights])
    others = torch.autograd.grad((expected * weight).sum() + loss, [x2, *weights])
    torch.testing.assert_close(grads, others)


def test_weights_sum_to_one_or_to_what_the_listing_makes_of_them():
    """With p = 0.5 twice: 1 by the paper, and 1 - 0.5 x 0.5 by its listing."""
    ones = torch.ones(1, 3, D, dtype=torch.float64)
    for mix, expected in (("sum", 1.0), ("interpolate", 0.75)):
        depth = build("universal", Size(D, STEPS), bias=0.0, mix=mix).double()
        y = depth(ones, lambda _n, u, _: torch.ones_like(u)).x
        torch.testing.assert_close(y, torch.full_like(y, expected))


@pytest.mark.parametrize(("bias", "steps"), [(1.0, 2), (0.0, 2), (-1.0, 4), (-2.0, 9), (-3.0, 21)])
def test_the_bias_sets_the_first_number_of_steps(bias, steps):
    depth = build("universal", Size(D, 30), bias=bias)
    assert depth(torch.randn(2, 3, D), lambda _n, u, _: u).steps.unique().tolist() == [steps]


@pytest.mark.parametrize("most", [2, 3, 4, 6, 7, 12, 24])
def test_by_default_it_begins_in_the_middle(most):
    """Neither at one step, where nothing would teach it to make more, nor at the limit."""
    depth = build("universal", Size(D, most))
    assert depth(torch.randn(2, 3, D), lambda _n, u, _: u).steps.unique().tolist() == [max(2, (most + 1) // 2)]


def test_where_one_step_is_made_nothing_teaches_more():
    """The trap that the first bias stands against: the gradient of p is 0."""
    depth, layer = stirred(build("universal", Size(D, STEPS), bias=9.0, tau=1.0), 9.0).train(), Layer()
    gone = depth(torch.randn(2, 3, D, dtype=torch.float64), layer)
    assert gone.steps.unique().tolist() == [1]
    grads = torch.autograd.grad(
        gone.x.square().sum() + gone.loss, [depth.weight, depth.bias, layer.own], allow_unused=True
    )
    assert not any(grad is not None and grad.any() for grad in grads[:2])
    assert grads[2].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"halts": False, "tau": 0.0}, r"tau has an effect only where halts is true; got 0.0"),
        ({"eps": 0.0}, r"eps must be in \(0, 1\), got 0.0"), ({"eps": 1.0}, r"eps must be in \(0, 1\), got 1.0"),
        ({"tau": -0.1}, "tau must be at least 0, got -0.1"),
        ({"mix": "mean"}, "mix must be one of sum, interpolate; got 'mean'"),
        ({"codes": "rotary"}, "codes must be one of sinusoidal, learned, none; got 'rotary'"),
    ],
)  # fmt: skip
def test_what_is_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        build("universal", Size(D, STEPS), **options)
    with pytest.raises(ValueError, match=message):
        config(depth_options=options)


# In networks.


def config(**given):
    sizes = {
        "vocab_size": 17, "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 19,
        "num_hidden_layers": STEPS, "max_position_embeddings": 30, "initializer_range": 0.3, "pad_token_id": 0,
        "depth": "universal",
    }  # fmt: skip
    return GreenformerConfig(**sizes | given)


def network(kind=GreenformerModel, bias=-0.7, **given):
    torch.manual_seed(0)
    return stirred(kind(config(**given)), bias)


def tokens(batch=B, length=N, seed=1):
    return torch.randint(1, 17, (batch, length), generator=torch.Generator().manual_seed(seed))


PAIR = {"decoder_layers": 4, "decoder_start_token_id": 1}
KINDS = {
    "encoder": (GreenformerModel, {}),
    "causal": (GreenformerForCausalLM, {}),
    "pair": (GreenformerForSeq2SeqLM, PAIR),
}
FORMS = {
    "full": {},
    "pre-norm": {"residual": "pre"},
    "rotary": {"position": "rotary", "num_key_value_heads": 1, "qk_norm": True},
    "learned positions and codes": {"position": "learned", "depth_options": {"codes": "learned"}},
    "low rank": {"rank": {"q": 3, "k": 5, "output": 4, "up": 3, "down": 5}},
    "interpolated": {"depth_options": {"mix": "interpolate"}},
    "added to scores": {"position": "alibi"},
    "linformer": {"attention": "linformer", "attention_options": {"k": 4}},
    "performer": {"attention": "performer", "position": "learned"},
    "sliding window": {"attention": "sliding_window", "attention_options": {"window": 2}},
    "experts": {"feed_forward": "switch", "feed_forward_options": {"experts": 3, "capacity": None, "jitter": 0.0}},
    "chunked": {"feed_forward": "chunked", "feed_forward_options": {"chunk": 2}},
}
CASES = [(kind, form) for kind in KINDS for form in FORMS if not (form == "linformer" and kind != "encoder")]


def given(kind, form):
    own, more = KINDS[kind]
    options = dict(FORMS[form])
    if kind == "pair" and "attention" in options:
        options |= {f"decoder_{name}": options[name] for name in ("attention", "attention_options") if name in options}
    return own, more | options


def stacks(model):
    return [part for part in model.modules() if isinstance(getattr(part, "depth", None), file.Universal)]


def output(kind, model, ids, mask):
    if kind == "encoder":
        return model(ids, mask).last_hidden_state
    out = model(ids, mask, ids, mask) if kind == "pair" else model(ids, mask)
    return out.logits


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_positions_that_halted_are_left_out_and_nothing_changes(kind, form, monkeypatch):
    """The fast form beside the definition, which computes all positions; outputs, losses and gradients."""
    own, options = given(kind, form)
    model, ids, mask = network(own, **options).train(), tokens(), padded(11, 4, 7)
    results = []
    for traced in (False, True):
        monkeypatch.setattr(file, "is_traced", lambda _, traced=traced: traced)
        model.zero_grad()
        ponder = []
        hooks = [
            stack.depth.register_forward_hook(lambda *given, ponder=ponder: ponder.append(given[-1].loss))
            for stack in stacks(model)
        ]
        out = output(kind, model, ids, mask)[mask]
        for hook in hooks:
            hook.remove()
        assert len(ponder) == len(hooks) > 0
        (out.square().sum() + sum(ponder)).backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        results.append([out.detach(), *(loss.detach() for loss in ponder), *grads])
    torch.testing.assert_close(*results, **CLOSE)
    steps = (model if kind == "encoder" else model.decoder if kind == "causal" else model.encoder)(ids, mask).steps
    assert len(steps[mask].unique()) > 1
    assert not steps[~mask].any()


@torch.no_grad()
def test_cross_attention_that_counts_its_queries_is_given_all_of_them(monkeypatch):
    options = {"cross_attention": "synthesizer_random", "cross_attention_options": {"mixed": True}}
    model, ids, mask = network(GreenformerForSeq2SeqLM, 0.2, **PAIR, **options), tokens(), padded(11, 4, 7)
    out = output("pair", model, ids, mask)
    monkeypatch.setattr(file, "is_traced", lambda _: True)
    torch.testing.assert_close(output("pair", model, ids, mask)[mask], out[mask], **CLOSE)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("kind", "form"), CASES)
@torch.no_grad()
def test_a_padded_text_gets_what_it_gets_alone(kind, form, side):
    own, options = given(kind, form)
    model, ids, mask = network(own, **options), tokens(), padded(11, 4, 7)
    mask = mask.flip(1) if side == "left" else mask
    out = output(kind, model, ids, mask)
    other = output(kind, model, ids.where(mask, tokens(seed=5)), mask)
    torch.testing.assert_close(other[mask], out[mask], **CLOSE)
    for b in range(B):
        alone = output(kind, model, ids[b : b + 1, mask[b]], None)
        torch.testing.assert_close(out[b, mask[b]], alone[0], **CLOSE)


@pytest.mark.parametrize("form", [form for kind, form in CASES if kind == "causal"])
def test_causal(form, monkeypatch):
    """No gradient at all from the future. Numbers are those of fewer rows: equal to rounding, and to the bit in the
    definition, whose products have all rows."""
    _, options = given("causal", form)
    model, ids = network(GreenformerForCausalLM, **options), tokens(1)
    x = model.decoder.embedding(ids).detach().requires_grad_()
    for t in range(0, N, 3):
        (grad,) = torch.autograd.grad(model(inputs_embeds=x).logits[:, t].square().sum(), x)
        assert not grad[:, t + 1 :].any()
        assert grad[:, t].any()
    for traced in (False, True):
        monkeypatch.setattr(file, "is_traced", lambda _, traced=traced: traced)
        before = model(ids).logits
        for place in (1, 5, N - 1):
            other = torch.cat([ids[:, :place], 1 + ids[:, place:] % 16], 1)
            after = model(other).logits[:, :place]
            torch.testing.assert_close(after, before[:, :place], **CLOSE)
            assert not traced or form == "experts" or torch.equal(after, before[:, :place])


@pytest.mark.parametrize("form", [form for kind, form in CASES if kind == "causal"])
@torch.no_grad()
def test_a_text_in_pieces_on_top_of_a_cache_of_each_step(form):
    _, options = given("causal", form)
    model, ids, mask = network(GreenformerForCausalLM, **options), tokens(), padded(11, 4, 7).flip(1)
    expected, steps = model(ids, mask).logits, model.decoder(ids, mask).steps
    for lengths in ([1] * N, [5, 1, 5]):
        past, place = None, 0
        for length in lengths:
            piece, seen = ids[:, place : place + length], mask[:, : place + length]
            out = model(piece, seen, past_key_values=past, use_cache=True)
            piece_mask = mask[:, place : place + length]
            torch.testing.assert_close(out.logits[piece_mask], expected[:, place : place + length][piece_mask], **CLOSE)
            past, place = out.past_key_values, place + length
        assert [past.get_seq_length(n) for n in range(STEPS)] == [N] * STEPS
    assert len(steps[mask].unique()) > 1


@pytest.mark.parametrize("kind", ["causal", "pair"])
@pytest.mark.parametrize("form", ["full", "rotary", "performer", "interpolated"])
def test_generation(kind, form):
    own, options = given(kind, form)
    model, ids, mask = network(own, **options), tokens(length=5), padded(5, 2, 3, length=5).flip(1)
    for more in ({}, {"num_beams": 3}):
        texts = [
            model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False, use_cache=use, **more)
            for use in (True, False)
        ]
        assert torch.equal(*texts)


def test_a_fixed_number_of_steps_without_codes_is_shared_depth():
    for position in ("learned", "rotary", "none"):
        model = network(position=position, depth_options={"halts": False, "codes": "none"})
        shared = GreenformerModel(config(depth="shared", position=position)).double().eval()
        shared.load_state_dict({name: value for name, value in model.state_dict().items() if "depth" not in name})
        assert parameters(model) == parameters(shared)
        out = model(tokens(), padded(11, 4, 7))
        assert torch.equal(out.last_hidden_state, shared(tokens(), padded(11, 4, 7)).last_hidden_state)
        assert out.steps.unique().tolist() == [0, STEPS]


def test_positions_come_before_every_step_unless_a_kind_is_named():
    model = network(depth_options={"halts": False}).eval()
    assert model.embedding.position is None
    assert model.depth.size.positions
    x = model.embedding(tokens())
    for n, layer in enumerate(model.layers, start=1):
        x = layer(x + sinusoidal(torch.arange(N), 12, x.dtype) + sinusoidal(torch.tensor([n]), 12, x.dtype))
    torch.testing.assert_close(model(tokens()).last_hidden_state, x)
    assert model.embedding.scales_tokens  # or tokens would be small beside sinusoids of amplitude 1
    shifted = model(tokens(), position_ids=torch.arange(3, N + 3)[None]).last_hidden_state
    assert not torch.allclose(shifted, x)
    assert not network(position="learned").depth.size.positions
    assert not network(GreenformerForCausalLM, attention="transformer_xl").decoder.depth.size.positions


def test_packed_texts_have_their_steps():
    model = network(GreenformerForCausalLM)
    ids, starts = tokens(1), torch.tensor([0, 4, 11], dtype=torch.int32)
    out = model.decoder(ids, cu_seq_lens_q=starts)
    assert torch.equal(out.steps[:, 4:], model.decoder(ids[:, 4:]).steps)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_weights_and_no_hidden_states(kind):
    model, ids = network(*KINDS[kind][:1], **KINDS[kind][1]), tokens()
    given = {"decoder_input_ids": ids} if kind == "pair" else {}
    with pytest.raises(ValueError, match="output_hidden_states must be False: with depth universal"):
        model(ids, output_hidden_states=True, **given)
    out = model(ids, output_attentions=True, **given)
    plain = model(ids, **given)
    torch.testing.assert_close(out[0], plain[0], **CLOSE)
    attentions = out.decoder_attentions if kind == "pair" else out.attentions
    assert len(attentions) > 1
    assert all(weights.shape == (B, 2, N, N) for weights in attentions)


# What is computed.


def test_what_is_computed_is_counted():
    """A step of S of N positions: keys and values of all, and query, output and feed-forward block of these alone."""
    model, ids = network(), tokens(1)
    d, f = 12, 19
    steps = model(ids).steps[0]
    expected = 0
    for n in range(1, int(steps.max()) + 1):
        S = int((steps >= n).sum())
        expected += 2 * N * 2 * d * d + S * (2 * 2 * d * d + 2 * 2 * d * f + 2 * 2 * N * d) + 2 * N * d
    assert len(steps.unique()) > 2
    assert flops(lambda: model(ids)) == expected


def test_a_sequence_that_halted_is_not_computed():
    """Of a batch of texts that go on by a token each, those that go on alone."""
    model = network(GreenformerForCausalLM, residual="post")
    ids = tokens()
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
        new = tokens(length=1, seed=2)
        seen = []
        layer = model.decoder.layers[0].__class__
        for part in model.decoder.layers:
            part.feed_forward.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[:2]))
        steps = model.decoder(new, past_key_values=cache, use_cache=True).steps[:, 0]
    assert isinstance(cache, DynamicCache)
    assert layer.__name__ == "EncoderLayer"
    assert [rows for rows, _ in seen] == [int((steps >= n).sum()) for n in range(1, int(steps.max()) + 1)]
    assert [cache.get_seq_length(n) for n in range(STEPS)] == [N + 1] * STEPS


def test_work_grows_with_the_steps():
    work = {}
    for bias in (4.0, 0.0, -1.0, -20.0):
        model = network(bias=bias, num_hidden_layers=9)
        with torch.no_grad():
            model.depth.weight.zero_()
        work[int(model(tokens()).steps[0, 0])] = flops(lambda model=model: model(tokens()))
    assert sorted(work) == [2, 4, 9] or sorted(work) == [1, 2, 4, 9]
    step_flops = work[4] // 4
    assert work == {steps: steps * step_flops for steps in work}


def test_exported_code_computes_all_steps():
    model, ids, mask = network(num_hidden_layers=2), tokens(), padded(11, 4, 7)
    exported = torch.export.export(model, (ids, mask), strict=False).module()
    for given in ((ids, mask), (tokens(seed=7), padded(3, 11, 9))):
        torch.testing.assert_close(exported(*given).last_hidden_state, model(*given).last_hidden_state, **CLOSE)


# Losses, saving, training.


@pytest.mark.parametrize("name", ["masked", "causal", "pair", "classes"])
def test_the_ponder_loss_is_that_of_steps_and_remainders(name):
    kinds = {"masked": GreenformerForMaskedLM, "classes": GreenformerForSequenceClassification} | {
        kind: own for kind, (own, _) in KINDS.items()
    }
    more = PAIR if name == "pair" else {}
    model, ids, mask = network(kinds[name], depth_options={"tau": 0.5}, **more), tokens(), padded(11, 4, 7)
    labels = torch.tensor([0, 1, 1]) if name == "classes" else ids.masked_fill(~mask, -100)
    task = model(ids, mask, labels=labels).loss
    whole = model.train()(ids, mask, labels=labels).loss
    seen = []
    for stack in stacks(model):
        stack.depth.register_forward_hook(lambda *given: seen.append(given[-1]))
    model(ids, mask, labels=labels)
    expected = sum(gone.loss for gone in seen)
    torch.testing.assert_close(whole - task, expected)
    assert len(seen) == (2 if name == "pair" else 1)
    assert expected > 0.5 * len(seen)
    parts = [
        model(
            ids[b : b + 1], mask[b : b + 1], labels=labels[b : b + 1], num_items_in_batch=int((labels != -100).sum())
        ).loss
        for b in range(B)
    ]
    if name == "masked":
        torch.testing.assert_close(sum(parts), whole)


def test_losses_of_layers_count_once_a_step():
    options = {"feed_forward": "switch", "feed_forward_options": {"experts": 3, "jitter": 0.0, "capacity": None}}
    model = network(depth_options={"tau": 0.0}, **options).train()
    steps = int(model(tokens()).steps.max())
    loss = model(tokens()).auxiliary_loss
    assert 1e-2 * steps < loss.item() < 3e-2 * steps + 1


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputed_layers_have_the_same_gradients(recompute):
    model = network().train()
    if recompute:
        model.activation_checkpointing_enable()
    out = model(tokens(), padded(11, 4, 7))
    (out.last_hidden_state.square().sum() + out.auxiliary_loss).backward()
    plain = network().train()
    again = plain(tokens(), padded(11, 4, 7))
    (again.last_hidden_state.square().sum() + again.auxiliary_loss).backward()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert p.grad is not None, name
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_reloaded(kind, tmp_path):
    own, more = KINDS[kind]
    model = network(own, depth_options={"codes": "learned", "tau": 0.2}, **more)
    model.save_pretrained(tmp_path)
    again = own.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert parameters(again) == parameters(model)
    for stack in stacks(again):
        assert stack.depth.tau == 0.2
        assert stack.layers[2].attention.output.weight is stack.layers[0].attention.output.weight
    for (name, p), q in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q), name
    torch.testing.assert_close(output(kind, again, tokens(), None), output(kind, model, tokens(), None), **CLOSE)


def test_the_first_bias_is_not_drawn_anew(tmp_path):
    """Drawing all weights, and loading a network without these, sets the bias it must begin with and not 0."""
    model = GreenformerModel(config(num_hidden_layers=8))
    model.init_weights()
    first = model.depth.bias.item()
    assert first == pytest.approx(-1.0986, abs=1e-4)
    shared = GreenformerModel(config(num_hidden_layers=8, depth="shared", position="none"))
    shared.save_pretrained(tmp_path)
    loaded = GreenformerModel.from_pretrained(tmp_path, depth="universal", position="none")
    assert loaded.depth.bias.item() == first
    assert not loaded.depth.weight.any()
    assert torch.equal(loaded.layers[3].feed_forward.up.weight, shared.layers[0].feed_forward.up.weight)


def test_parameters_are_those_of_one_layer():
    model, one_layer = (
        GreenformerModel(config()),
        GreenformerModel(config(depth="stacked", num_hidden_layers=1, position="none")),
    )
    assert parameters(model) == parameters(one_layer) + 12 + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": "star"}, "block must be standard where depth is universal, got 'star'"),
        ({"residual": "reversible"}, "residual must be post or pre where depth is universal, got 'reversible'"),
        ({"shared": "attention"}, "shared must be all where depth is universal, got 'attention'"),
        ({"attention": "transformer_xl", "memory_length": 4}, "memory_length must be 0 where depth is .*, got 4"),
    ],
)  # fmt: skip
def test_slots_it_does_not_use(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        config(**options)


def test_layers_must_be_alike():
    with pytest.raises(
        ValueError, match=r"^depth universal needs layers alike, attention of layer 1 is not as layer 0"
    ):
        network(attention=["full", "linformer", "full", "full", "full"])


@pytest.mark.parametrize("mix", ORACLES)
def test_it_learns(mix):
    torch.manual_seed(0)
    model = GreenformerForMaskedLM(config(depth_options={"mix": mix})).train()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        loss = model(tokens(), labels=tokens()).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
    assert model.encoder.depth.weight.any()
