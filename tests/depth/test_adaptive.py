"""Adaptive depth: exits held to the paper by loops over tokens; copied keys in a cache; survivors regrouped."""

import pytest
import torch
import torch.nn.functional as F

from greenformers.depth import Size, adaptive, build
from greenformers.measure.flops import flops
from greenformers.model import GreenformerConfig, GreenformerForCausalLM, GreenformerModel
from greenformers.model.seq2seq import GreenformerForSeq2SeqLM

B, N, D, L, V = 3, 9, 12, 4, 17
CLOSE = {"atol": 1e-10, "rtol": 1e-10}
HALTINGS = {
    "confidence": {"threshold": [0.22, 0.23, 0.24]},
    "geometric": {"halting": "geometric"},
    "multinomial": {"halting": "multinomial"},
    "sequence": {"halting": "sequence"},
    "fixed": {"halting": "fixed", "exit": 2},
}
KINDS = {
    "causal": (GreenformerForCausalLM, {"num_hidden_layers": L}),
    "pair": (GreenformerForSeq2SeqLM, {"num_hidden_layers": 2, "decoder_layers": L, "decoder_start_token_id": 1}),
}
CASES = [(kind, halting) for kind in KINDS for halting in HALTINGS if (kind, halting) != ("causal", "sequence")]


def padded(*lengths, length=N):
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def config(**given):
    sizes = {
        "vocab_size": V, "hidden_size": D, "num_attention_heads": 2, "intermediate_size": 19,
        "max_position_embeddings": 30, "initializer_range": 0.3, "pad_token_id": 0, "depth": "adaptive",
    }  # fmt: skip
    return GreenformerConfig(**sizes | given)


def network(kind, halting="confidence", seed=0, **options):
    """With halting that is not the same for all tokens."""
    torch.manual_seed(seed)
    own, more = KINDS[kind]
    slots = {name: options.pop(name) for name in ("position", "attention", "residual") if name in options}
    model = own(config(**more, **slots, depth_options=HALTINGS[halting] | options)).double().eval()
    if model.decoder.depth.learns:
        torch.nn.init.normal_(model.decoder.depth.weight, std=0.7)
    return model


def tokens(batch=B, length=N, seed=1):
    return torch.randint(1, V, (batch, length), generator=torch.Generator().manual_seed(seed))


def call(model, ids, mask=None, **given):
    if isinstance(model, GreenformerForSeq2SeqLM):
        return model(ids, mask, ids, mask, **given)
    return model(ids, mask, **given)


def gone(model):
    """A list that what the depth gives is added to."""
    seen = []
    model.decoder.depth.register_forward_hook(lambda *given: seen.append(given[-1]))
    return seen


@pytest.mark.parametrize(("kind", "halting"), CASES)
@torch.no_grad()
def test_tokens_leave_as_the_loop_says(kind, halting):
    """Token by token: its state goes up until it leaves, and others attend the state it left with."""
    model, ids = network(kind, halting, position="learned"), tokens(1)
    decoder, seen = model.decoder, gone(model)
    depth = decoder.depth
    logits = call(model, ids).logits[0]
    s, left, out = decoder.embedding(ids), [None] * N, [None] * N
    encoded = () if kind == "causal" else (model.encoder(ids).last_hidden_state,)
    for n, layer in enumerate(decoder.layers):
        new = layer(s, *encoded)
        s = torch.stack([new[0, t] if left[t] is None else s[0, t] for t in range(N)])[None]
        for t in range(N):
            if left[t] is not None:
                continue
            h = depth.norms[n](s[0, t])
            if halting == "confidence":
                leaves = n < L - 1 and model.scores(h).softmax(-1).max() > depth.thresholds[n]
            elif halting == "geometric":
                leaves = n < L - 1 and torch.sigmoid(depth.weight[n] @ h + depth.bias[n]) > 0.5
            elif halting == "fixed":
                leaves = n == 1
            else:
                if halting == "sequence":
                    out[t] = int((depth.weight @ encoded[0][0].mean(0) + depth.bias).argmax())
                elif n == 0:
                    out[t] = int((depth.weight @ h + depth.bias).argmax())
                leaves = n == out[t]
            if leaves or n == L - 1:
                left[t] = n + 1
                torch.testing.assert_close(model.scores(h), logits[t], **CLOSE)
    assert seen[0].steps[0].tolist() == left
    assert halting in ("fixed", "sequence") or len(set(left)) > 1


@pytest.mark.parametrize(("kind", "halting"), CASES)
@torch.no_grad()
def test_survivors_alone_and_all_tokens_give_the_same(kind, halting, monkeypatch):
    model, ids, mask = network(kind, halting), tokens(), padded(9, 3, 6)
    fast = call(model, ids, mask).logits
    monkeypatch.setattr(adaptive, "is_traced", lambda _: True)
    torch.testing.assert_close(call(model, ids, mask).logits[mask], fast[mask], **CLOSE)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("kind", "halting"), CASES)
@torch.no_grad()
def test_a_padded_text_gets_what_it_gets_alone(kind, halting, side):
    model, ids, mask = network(kind, halting), tokens(), padded(9, 3, 6)
    mask = mask.flip(1) if side == "left" else mask
    out = call(model, ids, mask).logits
    torch.testing.assert_close(call(model, ids.where(mask, tokens(seed=5)), mask).logits[mask], out[mask], **CLOSE)
    for b in range(B):
        torch.testing.assert_close(out[b, mask[b]], call(model, ids[b : b + 1, mask[b]]).logits[0], **CLOSE)


@pytest.mark.parametrize(("kind", "halting"), CASES)
def test_causal(kind, halting):
    model, ids, source = network(kind, halting), tokens(1), tokens(1, seed=3)
    x = model.decoder.embedding(ids).detach().requires_grad_()
    model.decoder.embedding.forward = lambda *_, **__: x
    given = {"input_ids": source, "decoder_input_ids": ids} if kind == "pair" else {"input_ids": ids}
    for t in range(0, N, 3):
        (grad,) = torch.autograd.grad(model(**given).logits[:, t].square().sum(), x)
        assert not grad[:, t + 1 :].any()
        assert grad[:, t].any()


@pytest.mark.parametrize(("kind", "halting"), CASES)
def test_generation_with_keys_of_skipped_layers(kind, halting):
    model, ids, mask = network(kind, halting), tokens(length=5), padded(5, 2, 3, length=5).flip(1)
    for more in ({}, {"num_beams": 3}):
        given = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False} | more
        assert torch.equal(*(model.generate(ids, use_cache=use, **given) for use in (True, False)))


@pytest.mark.parametrize("attention", [{"position": "alibi"}, {"attention": "performer", "position": "learned"}])
def test_mechanisms_that_take_no_queries_apart(attention):
    model, ids = network("causal", **attention), tokens(length=5)
    given = {"max_new_tokens": 7, "do_sample": False}
    assert torch.equal(*(model.generate(ids, use_cache=use, **given) for use in (True, False)))


@torch.no_grad()
def test_tokens_that_left_are_not_computed():
    """Of a batch that goes on by a token each, layer n computes those that have not left, and the cache is whole."""
    model, ids = network("causal"), tokens(7)
    past = model(ids, use_cache=True).past_key_values
    seen, rows = gone(model), []
    for layer in model.decoder.layers:
        layer.feed_forward.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    model(tokens(7, 1, seed=2), past_key_values=past, use_cache=True)
    steps = seen[0].steps[:, 0]
    assert rows == [count for n in range(1, L + 1) if (count := int((steps >= n).sum()))] + [0] * (L - int(steps.max()))
    assert len(steps.unique()) > 1
    assert [past.get_seq_length(n) for n in range(L)] == [N + 1] * L


def test_work_grows_with_the_exit():
    work = []
    for exit_ in range(1, L + 1):
        model = network("causal", "fixed", exit=exit_)
        work.append(flops(lambda model=model: model.decoder(tokens())))
    assert work == [n * work[0] for n in range(1, L + 1)]


# Losses.


def pieces(model, ids, labels):
    """Exits of a call in training, LL (L, B, N), and whether each exit is right."""
    out = model.train().decoder(
        ids, *([None, model.encoder(ids).last_hidden_state] if hasattr(model, "encoder") else [])
    )
    logs = torch.stack([model.scores(state).log_softmax(-1) for state in out.exits.states])
    return (
        out.exits,
        logs.gather(-1, labels.clamp(min=0).expand(L, -1, -1)[..., None])[..., 0],
        logs.argmax(-1) == labels,
    )


def inner(model, ids):
    """Decoder inputs and labels of a call with these labels."""
    if isinstance(model, GreenformerForSeq2SeqLM):
        return model.prepare_decoder_input_ids_from_labels(ids), ids
    return ids, F.pad(ids, (0, 1), value=-100)[:, 1:]


@pytest.mark.parametrize("by_depth", [False, True])
def test_the_aligned_loss_is_the_weighted_mean_of_all_exits(by_depth):
    model, ids = network("causal", by_depth=by_depth), tokens()
    given, labels = inner(model, ids)
    _, LL, _ = pieces(model, given, labels)
    mask = labels != -100
    w = [n if by_depth else 1 for n in range(1, L + 1)]
    expected = -sum(weight * LL[n][mask].mean() for n, weight in enumerate(w)) / sum(w)
    torch.testing.assert_close(model(ids, labels=ids).loss, expected)
    parts = [model(ids[b : b + 1], labels=ids[b : b + 1], num_items_in_batch=int(mask.sum())).loss for b in range(B)]
    torch.testing.assert_close(sum(parts), expected)


@pytest.mark.parametrize("oracle", ["likelihood", "correctness"])
@pytest.mark.parametrize(
    ("halting", "smooth"), [("geometric", 0.0), ("geometric", 2.0), ("multinomial", 0.0), ("sequence", 0.0)]
)
def test_halting_learns_the_oracle(halting, smooth, oracle):
    options = {"cost": 0.05, "smooth": smooth, "oracle": oracle}
    model = network("pair", halting, alpha=0.7, **options)
    ids, depth = tokens().masked_fill(~padded(9, 3, 6), -100), model.decoder.depth
    source = tokens()
    given = model.prepare_decoder_input_ids_from_labels(ids)
    model.train()
    encoded = model.encoder(source).last_hidden_state
    exits = model.decoder(given, None, encoded).exits
    logs = torch.stack([model.scores(state).log_softmax(-1) for state in exits.states])
    total, count = torch.zeros((), dtype=torch.float64), int((ids != -100).sum())
    for b in range(B):
        n_labels = int((ids[b] != -100).sum())
        gain = torch.zeros(n_labels, L, dtype=torch.float64)
        for t in range(n_labels):
            for n in range(L):
                hit = float(logs[n, b, t].argmax() == ids[b, t])
                gain[t, n] = logs[n, b, t, ids[b, t]].item() if oracle == "likelihood" else hit
        for t in range(n_labels):
            if halting == "sequence":
                scores = [gain[:, n].mean() - 0.05 * (n + 1) for n in range(L)]
                log_q = torch.log_softmax(depth.weight @ encoded[b].mean(0) + depth.bias, -1)
            else:
                around = [
                    torch.tensor(-((t - s) ** 2) / smooth).exp() if smooth else float(s == t) for s in range(n_labels)
                ]
                scores = [sum(w * gain[s, n] for s, w in enumerate(around)) - 0.05 * (n + 1) for n in range(L)]
                if halting == "multinomial":
                    log_q = torch.log_softmax(depth.weight @ exits.states[0][b, t] + depth.bias, -1)
                else:
                    c = [torch.sigmoid(depth.weight[n] @ exits.states[n][b, t] + depth.bias[n]) for n in range(L - 1)]
                    q = [
                        c[n] * torch.stack([1 - x for x in [*c[:n], torch.zeros(()).double()]]).prod()
                        for n in range(L - 1)
                    ]
                    log_q = torch.stack([*q, torch.stack([1 - x for x in c]).prod()]).log()
            best = max(range(L), key=lambda n: scores[n])
            total = total - log_q[best]
    own = network("pair", halting, alpha=0.0, **options).train()
    own.load_state_dict(model.state_dict())
    expected = own(source, labels=ids).loss + 0.7 * total / count
    loss = model(source, labels=ids).loss
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert depth.weight.grad.any()


def test_mixed_training_copies_states_above_random_exits():
    model, ids = network("causal", train="mixed", paths=2, position="learned"), tokens()
    given, labels = inner(model, ids)
    seen = gone(model)
    torch.manual_seed(3)
    loss = model.train()(ids, labels=ids).loss
    loss.backward()
    states = seen[0].exits.states
    torch.manual_seed(3)
    drawn = [torch.randint(L, (B * N,)).view(B, N) for _ in range(2)]
    expected = []
    for exits in drawn:
        s, out = model.decoder.embedding(given), torch.zeros(B, N, D, dtype=torch.float64)
        for n, layer in enumerate(model.decoder.layers):
            new = layer(s)
            s = torch.where((exits >= n)[..., None], new if torch.is_tensor(new) else new[0], s)
            out = torch.where((exits == n)[..., None], model.decoder.depth.norms[n](s), out)
        expected.append(out)
    torch.testing.assert_close(states, tuple(expected))
    logs = torch.stack([model.scores(state).log_softmax(-1) for state in expected])
    mask = labels != -100
    torch.testing.assert_close(loss, F.nll_loss(logs[:, mask].flatten(0, 1), labels[mask].repeat(2)))
    assert all(parameter.grad is not None for parameter in model.decoder.layers.parameters())


def test_losses_of_experts_weigh_the_same_for_any_number_of_paths(monkeypatch):
    losses, ids = [], tokens()
    monkeypatch.setattr(torch, "randint", lambda high, size, **_: torch.full(size, high - 1))
    for paths in (1, 4):
        torch.manual_seed(0)
        options = {"train": "mixed", "paths": paths}
        model = GreenformerForCausalLM(
            config(num_hidden_layers=2, feed_forward="switch", hidden_dropout_prob=0.0, depth_options=options)
        ).train()
        model.decoder.register_forward_hook(lambda *given: losses.append(given[-1].auxiliary_loss))
        model(ids)
    torch.testing.assert_close(losses[1], losses[0])


@pytest.mark.parametrize(("kind", "halting"), CASES)
def test_saved_and_reloaded(kind, halting, tmp_path):
    model = network(kind, halting)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    for (name, p), q in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q), name
    torch.testing.assert_close(call(again, tokens()).logits, call(model, tokens()).logits, **CLOSE)


def test_it_learns():
    torch.manual_seed(0)
    model = GreenformerForCausalLM(config(num_hidden_layers=3, depth_options={"halting": "geometric"})).train()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(40):
        loss = model(tokens(), labels=tokens()).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3


@pytest.mark.parametrize("halting", ["geometric", "multinomial"])
def test_of_a_single_layer_there_is_nothing_to_choose(halting):
    model = GreenformerForCausalLM(config(num_hidden_layers=1, depth_options={"halting": halting})).train()
    ids = tokens()
    loss = model(ids, labels=ids).loss
    loss.backward()
    logits = model.eval()(ids).logits[:, :-1]
    torch.testing.assert_close(loss, F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("halting", HALTINGS)
def test_a_batch_of_nothing(halting):
    depth, x = build("adaptive", Size(D, L), **HALTINGS[halting]).eval(), torch.zeros(0, N, D)
    gone = depth(x, lambda _n, x, _running: x, score=lambda h: h, context=x[:, 0])
    assert gone.x.shape == x.shape
    assert gone.steps.shape == (0, N)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"halting": "fixed", "threshold": 0.5}, "threshold has an effect only where halting is confidence; got 0.5"),
        ({"exit": 2}, "exit has an effect only where halting is fixed; got 2"),
        ({"paths": 2}, "paths has an effect only where train is mixed; got 2"),
        ({"alpha": 0.5}, "alpha has an effect only where halting is geometric, multinomial or sequence; got 0.5"),
        ({"halting": "sequence", "smooth": 2.0}, "smooth has an effect only where tokens leave one by one"),
        ({"halting": "entropy"}, "halting must be one of confidence, .*; got 'entropy'"),
        ({"train": "apart"}, "train must be one of aligned, mixed; got 'apart'"),
        ({"oracle": "delphi"}, "oracle must be one of likelihood, correctness; got 'delphi'"),
        ({"threshold": 1.5}, r"threshold must be in \[0, 1\], got 1.5"),
        ({"threshold": [0.5]}, "threshold must have one entry an exit but the last, 3, got 1"),
        ({"exit": 0}, r"exit must be in 1\.\.4, got 0"), ({"exit": 5}, r"exit must be in 1\.\.4, got 5"),
        ({"paths": 0}, "paths must be at least 1, got 0"), ({"cost": -1.0}, "cost must be at least 0, got -1.0"),
        ({"smooth": -1.0}, "smooth must be at least 0"), ({"alpha": -1.0}, "alpha must be at least 0, got -1.0"),
        ({"train": "mixed", "halting": "geometric"}, "train must be aligned where halting is geometric"),
        ({"train": "mixed", "by_depth": True}, "by_depth must be False where train is mixed, .*; got True"),
    ],
)  # fmt: skip
def test_what_is_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        build("adaptive", Size(D, L), **options)


def test_what_has_no_exits():
    with pytest.raises(ValueError, match=r"^depth adaptive is for decoders: its exits score the next token$"):
        GreenformerModel(config(num_hidden_layers=2))
    model = network("causal")
    with pytest.raises(
        ValueError, match=r"^halting by confidence needs the scores of tokens: call the model with its head$"
    ):
        model.decoder(tokens())
    alone = GreenformerForCausalLM(config(num_hidden_layers=2, depth_options={"halting": "sequence"})).eval()
    with pytest.raises(ValueError, match=r"^halting by sequence reads an encoder"):
        alone(tokens())
    assert network("pair").encoder.depth is None
