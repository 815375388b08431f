"""Every kind of position against its formula, and what holds for all: distances alone count, caches and padding."""

import math

import pytest
import torch
from transformers import DynamicCache
from transformers.models.t5.modeling_t5 import T5Attention

from greenformers.attention import Shape, _relative_tiles
from greenformers.attention import build as attention
from greenformers.model import GreenformerConfig, GreenformerForCausalLM, GreenformerModel
from greenformers.model.seq2seq import GreenformerForSeq2SeqLM
from greenformers.position import Place, build, huang, names, position_class, rotary, shaw
from greenformers.position.alibi import slopes
from greenformers.position.sinusoidal import sinusoidal

H, D, LENGTH = 3, 8, 29
OPTIONS = {"t5": {"buckets": 8, "farthest": 11}, "shaw": {"clip": 3}, "huang": {"longest": 7}}
RELATIVE = sorted(name for name in names() if position_class(name).acts != "embedding")
VOCABULARY = 31


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def position(name, *, causal, **options):
    place = Place(width=H * D, heads=H, head_dim=D, max_len=LENGTH, causal=causal)
    return build(name, place, **OPTIONS.get(name, {}) | options).double()


def drawn(queries, keys):
    return [torch.randn(2, H, length, D, dtype=torch.float64) for length in (queries, keys, keys)]


def by_formula(kind, name, q, k, v, mask, *, causal):
    """Softmax attention, pair by pair."""
    N, M = q.shape[2], k.shape[2]
    out = torch.zeros_like(q)
    if name == "rotary":
        q = rotary.reference(q, torch.arange(M - N, M), kind.base)
        k = rotary.reference(k, torch.arange(M), kind.base)
    scores = q @ k.mT / D**0.5
    of_values = torch.zeros(N, M, D, dtype=q.dtype)
    if name == "alibi":
        for h, slope in enumerate([2**-4, 2**-8, 2**-2]):  # two of 2, and the first of every second of 4
            for i in range(N):
                for j in range(M):
                    scores[:, h, i, j] -= slope * abs(M - N + i - j)
    if name == "t5":
        for i in range(N):
            for j in range(M):
                behind = M - N + i - j
                bucket = T5Attention._relative_position_bucket(
                    torch.tensor(-behind), not causal, OPTIONS["t5"]["buckets"], OPTIONS["t5"]["farthest"]
                )
                scores[:, :, i, j] += kind.biases[bucket]
    if name == "shaw":
        scores, of_values = shaw.reference(kind, q, k)
    if name == "huang":
        scores = huang.reference(kind, q, k)
    for b in range(2):
        for i in range(N):
            seen = [j for j in range(M) if mask[b, j] and (not causal or j <= M - N + i)]
            if seen:
                weights = scores[b, :, i, seen].softmax(-1)  # (H, m)
                out[b, :, i] = torch.einsum("hm,hmd->hd", weights, v[b][:, seen] + of_values[i, seen])
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "tiled"), [*((name, False) for name in RELATIVE), ("alibi", True), ("huang", True), ("t5", True)]
)
def test_equals_its_formula_with_gradients(name, tiled, causal, monkeypatch):
    if tiled:  # of few queries too
        monkeypatch.setattr("greenformers.attention.full.FEW", 0)
        monkeypatch.setattr(_relative_tiles, "ON_CPU", _relative_tiles.Sizes(queries=4, keys=8, heads=2))
    kind, full = position(name, causal=causal), attention("full", Shape(H, D, LENGTH, causal=causal))
    for N, M in [(13, 13), (5, 13), (1, 11), (1, 1)]:
        q, k, v = (x.requires_grad_() for x in drawn(N, M))
        mask = torch.rand(2, M) > 0.3
        if kind.acts == "rotation":
            turned = [
                kind.turn(x, kind.rotation(at[None], x.dtype))
                for x, at in ((q, torch.arange(M - N, M)), (k, torch.arange(M)))
            ]
            output = full(*turned, v, mask)
        else:
            output = full(q, k, v, mask, relative=kind)
        expected = by_formula(kind, name, q, k, v, mask, causal=causal)
        torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
        leaves = [q, k, v, *kind.parameters()]
        g = torch.randn_like(output)
        some = torch.autograd.grad(output, leaves, g, materialize_grads=True)
        torch.testing.assert_close(
            some, torch.autograd.grad(expected, leaves, g, materialize_grads=True), rtol=1e-8, atol=1e-9
        )


def test_slopes_are_the_published_ones():
    assert slopes(8) == [2**-h for h in range(1, 9)]
    assert slopes(12)[8:] == [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]


@pytest.mark.parametrize(
    "options", [{}, {"share": 0.5}, {"interleaved": True}, {"factor": 4.0}, {"factor": 2.0, "scaling": "base"}]
)
def test_rotated_products_go_by_distance(options):
    kind, (q, k, _) = position("rotary", causal=False, **options), drawn(11, 11)
    at = torch.arange(11)[None]
    products = [
        kind.turn(q, kind.rotation(at + moved, q.dtype)) @ kind.turn(k, kind.rotation(at + moved, q.dtype)).mT
        for moved in (0, 1000)
    ]
    torch.testing.assert_close(products[0], products[1], rtol=1e-9, atol=1e-9)
    assert (products[0] - q @ k.mT).abs().max() > 0.1


def test_options_of_rotary_positions():
    x, at = drawn(5, 5)[0], torch.arange(5)[None]
    plain = position("rotary", causal=False)
    neighbours = torch.stack([x[..., : D // 2], x[..., D // 2 :]], -1).flatten(-2)  # column c beside column c + D / 2
    turned = position("rotary", causal=False, interleaved=True).turn(neighbours, plain_rotation(at, interleaved=True))
    expected = plain.turn(x, plain.rotation(at, x.dtype))
    torch.testing.assert_close(torch.cat([turned[..., ::2], turned[..., 1::2]], -1), expected)
    half = position("rotary", causal=False, share=0.5)
    rotated = half.turn(x, half.rotation(at, x.dtype))
    assert torch.equal(rotated[..., D // 2 :], x[..., D // 2 :])
    torch.testing.assert_close(rotated[..., : D // 2], rotary.reference(x[..., : D // 2], at[0], 10000.0))
    slower = position("rotary", causal=False, factor=4.0)
    torch.testing.assert_close(slower.rotation(4 * at, x.dtype), plain.rotation(at, x.dtype))
    wider = position("rotary", causal=False, factor=3.0, scaling="base")
    torch.testing.assert_close(
        wider.rotation(at, x.dtype),
        position("rotary", causal=False, base=10000.0 * 3 ** (D / (D - 2))).rotation(at, x.dtype),
    )


def plain_rotation(at, **options):
    return position("rotary", causal=False, **options).rotation(at, torch.float64)


def sizes(name, **more):
    return {
        "vocab_size": VOCABULARY, "hidden_size": H * D, "num_hidden_layers": 3, "num_attention_heads": H,
        "intermediate_size": 17, "max_position_embeddings": LENGTH, "position": name,
        "position_options": OPTIONS.get(name),
    } | more  # fmt: skip


def stirred(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


CAUSAL = [
    (name, attention)
    for name in names()
    for attention in ("full", "sliding_window", "adaptive_span", "dacs", "performer")
    if attention == "full" or position_class(name).acts != "scores"
]


@pytest.mark.parametrize("residual", ["post", "reversible"])
@pytest.mark.parametrize(("name", "attention"), CAUSAL)
def test_a_decoder_with_cache_and_padding_is_the_decoder_alone(name, attention, residual):
    options = {"sliding_window": {"window": 3}, "adaptive_span": {"position_term": False}}.get(attention)
    sized = sizes(name, attention=attention, residual=residual, attention_options=options)
    model = stirred(GreenformerForCausalLM(GreenformerConfig(**sized)))
    ids = torch.randint(VOCABULARY, (2, 13))
    whole = model(ids).logits
    cache = DynamicCache()
    parts = [model(part, past_key_values=cache, use_cache=True).logits for part in ids.split([6, 1, 4, 2], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9)
    padded = torch.cat([torch.zeros(2, 5, dtype=torch.long), ids], 1)
    mask = torch.cat([torch.zeros(2, 5), torch.ones(2, 13)], 1)
    torch.testing.assert_close(model(padded, mask).logits[:, 5:], whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", names())
def test_encoders_and_pairs_have_them_too(name, tmp_path):
    ids = torch.randint(VOCABULARY, (2, 13))
    encoder = stirred(GreenformerModel(GreenformerConfig(**sizes(name))))
    alone, order = encoder(ids).last_hidden_state, torch.randperm(13)
    assert (encoder(ids[:, order]).last_hidden_state - alone[:, order]).abs().max() > 1e-3
    encoder.save_pretrained(tmp_path)
    loaded = GreenformerModel.from_pretrained(tmp_path, dtype=torch.float64).eval()
    for parameter in loaded.parameters():  # by where in memory numbers begin, sums may be rounded
        parameter.data = parameter.data.clone()
    assert torch.equal(loaded(ids).last_hidden_state, alone)
    pair = {
        "decoder_layers": 2,
        "pad_token_id": 0,
        "decoder_start_token_id": 1,
        "bos_token_id": 1,
        "eos_token_id": None,
    }
    model = stirred(GreenformerForSeq2SeqLM(GreenformerConfig(**sizes(name, **pair))))
    whole = model(ids, decoder_input_ids=ids[:, :9]).logits
    written = model.generate(ids, max_new_tokens=6, do_sample=False)
    again = model(ids, decoder_input_ids=written).logits.argmax(-1)
    assert torch.equal(again[:, :-1], written[:, 1:])
    assert whole.shape == (2, 9, VOCABULARY)


def test_t5_has_one_table_for_all_layers():
    model = GreenformerForCausalLM(GreenformerConfig(**sizes("t5")))
    tables = [layer.attention.position.biases for layer in model.decoder.layers]
    assert all(table is tables[0] for table in tables)
    assert sum("position.biases" in name for name, _ in model.named_parameters()) == 1


@pytest.mark.parametrize("attention", ["linformer", "nystromformer", "sinkhorn", "synthesizer_random", "reformer"])
@pytest.mark.parametrize("name", RELATIVE)
def test_attention_that_mixes_keys_refuses_them(name, attention):
    with pytest.raises(ValueError, match=f"position {name} does not fit {attention}"):
        GreenformerModel(GreenformerConfig(**sizes(name, attention=attention)))


def test_attention_with_positions_of_its_own_has_no_others():
    model = GreenformerForCausalLM(GreenformerConfig(**sizes("rotary", attention="transformer_xl")))
    assert all(layer.attention.position is None for layer in model.decoder.layers)
    assert model.decoder.embedding.position is None


def test_what_none_stands_for():
    kinds = {}
    for attention_name in ("full", "sliding_window", "linear_transformer", "transformer_xl"):
        config = GreenformerConfig(**sizes(None, attention=attention_name))
        kinds[attention_name] = (config.position_of(), config.position_of(causal=True))
    assert kinds == {
        "full": ("learned", "rotary"),
        "sliding_window": ("learned", "rotary"),
        "linear_transformer": ("learned", "learned"),
        "transformer_xl": ("none", "none"),
    }


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rotary", {"base": 0.5}, "base must be above 1, got 0.5"),
        ("rotary", {"share": 0.1}, "share must leave pairs of columns to turn, of 8 it leaves 0"),
        ("rotary", {"factor": 0.5}, "factor must be at least 1, got 0.5"),
        ("rotary", {"scaling": "yarn"}, "scaling must be one of linear, base; got 'yarn'"),
        ("t5", {"buckets": 3}, "buckets must be even and at least 4, got 3"),
        ("t5", {"farthest": 2}, "farthest must be above 2, got 2"),
        ("shaw", {"clip": 0}, "clip must be at least 1, got 0"),
        ("huang", {"longest": 0}, "longest must be at least 1, got 0"),
    ],
)
def test_options_out_of_range(name, options, message):
    with pytest.raises(ValueError, match=message):
        position(name, causal=False, **options)
    with pytest.raises(ValueError, match=r"position must be one of alibi, .*got 'spiral'"):
        build("spiral", Place(4, 2, 2, 5))
    with pytest.raises(ValueError, match="heads must be at least 1, got 0"):
        Place(4, 0, 2, 5)


def test_logarithms_of_distances_in_t5():
    kind = build("t5", Place(4, 2, 2, 500, causal=True))
    at = torch.arange(0, 300)
    expected = T5Attention._relative_position_bucket(-at, bidirectional=False, num_buckets=32, max_distance=128)
    assert torch.equal(kind.bucket(at), expected)
    assert kind.bucket(torch.tensor([127, 128, 299])).tolist() == [31, 31, 31]
    assert math.isclose(kind.biases.std().item(), 0.5, rel_tol=0.5)


def test_sums_of_shaw_are_of_float32(monkeypatch):
    """Of 2,048 equal weights in bfloat16 a GPU, which rounds each addition, would sum an eighth."""
    kind, seen = build("shaw", Place(4, 1, 4, 2048, causal=True)), []
    plain = torch.Tensor.scatter_add

    def noted(x, *given):
        seen.append(x.dtype)
        return plain(x, *given)

    monkeypatch.setattr(torch.Tensor, "scatter_add", noted)
    out = kind.values(torch.full((1, 1, 1, 2048), 2.0**-11).bfloat16())
    assert seen == [torch.float32]
    assert out.dtype == torch.bfloat16


def test_positions_do_not_depend_on_the_default_type():
    place = Place(width=12, heads=3, head_dim=4, max_len=64, causal=True)
    distance = torch.arange(64)[:, None] - torch.arange(64)

    def numbers() -> list[torch.Tensor]:
        torch.manual_seed(0)
        slopes_ = build("alibi", place).bias(distance).float()
        return [sinusoidal(torch.arange(1024), 64).float(), slopes_, build("t5", place).bucket(distance)]

    expected = numbers()
    torch.set_default_dtype(torch.bfloat16)
    try:
        actual = numbers()
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
