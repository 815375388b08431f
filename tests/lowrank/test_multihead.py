"""LowRankMultihead against nn.MultiheadAttention, alone and inside torch's own encoders and decoders."""

from copy import deepcopy

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from greenformers.lowrank.linear import LED
from greenformers.lowrank.multihead import LowRankMultihead, refuse_fast_path

B, L, S, H, D, f = 3, 7, 11, 2, 5, 19
d, KDIM, VDIM = H * D, 13, 17
MAPS = ("q_proj", "k_proj", "v_proj", "out_proj")
CLOSE = {
    torch.float64: {"atol": 1e-10, "rtol": 1e-10},
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    torch.bfloat16: {"atol": 0.05, "rtol": 0.05},
    torch.float16: {"atol": 0.01, "rtol": 0.01},
}
OPTIONS = [
    {},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True, "bias": False},
]
WIDTHS = [{}, {"kdim": KDIM, "vdim": VDIM}, {"kdim": KDIM}]
LAYOUTS = ["batch first", "batch second", "no batch"]
# Of key_padding_mask and attn_mask: whether there is one, and its kind.
MASKS = [(None, None), ("bool", None), ("float", None), *((k, a) for k in (None, "bool") for a in ("bool 2", "bool 3"))]
MASKS += [(k, a) for k in (None, "float") for a in ("float 2", "float 3")]
MAKING = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
NESTED = pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")


def dense(dtype=torch.float64, **options):
    attention = nn.MultiheadAttention(d, H, dtype=dtype, **options)
    for name, parameter in attention.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    return attention


def led(linear, rank=3):
    """An LED in place of a dense map; equal to it at full rank."""
    item = LED(linear.in_features, linear.out_features, rank, linear.bias is not None).to(linear.weight)
    with torch.no_grad():
        if rank == min(linear.weight.shape):
            eye = torch.eye(rank).to(linear.weight)
            tall = linear.out_features > linear.in_features
            item.encoder.weight.copy_(eye if tall else linear.weight)
            item.decoder.weight.copy_(linear.weight if tall else eye)
        if linear.bias is not None:
            item.bias.copy_(linear.bias)
    return item


def low_rank(attention, rank=3, names=MAPS):
    unit = LowRankMultihead.like(attention)
    for name in names:
        item = getattr(unit, name)
        setattr(unit, name, led(item, min(item.weight.shape) if rank is None else rank))
    return unit


def inputs(layout, kdim=d, vdim=d, dtype=torch.float64, lengths=(L, S)):
    """Query, key, value, which all need gradients."""
    sizes = [(lengths[0], d), (lengths[1], kdim), (lengths[1], vdim)]
    shapes = {
        "batch first": [(B, n, width) for n, width in sizes],
        "batch second": [(n, B, width) for n, width in sizes],
        "no batch": sizes,
    }
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes[layout]]


def random_mask(kind, shape, dtype):
    """No row is without a key to attend to."""
    if kind.startswith("float"):
        return torch.randn(shape, dtype=dtype)
    mask = torch.rand(shape) < 0.5
    mask[..., 0] = False
    return mask


def masks(kinds, layout, dtype=torch.float64, lengths=(L, S)):
    padding, attention = kinds
    batch, arguments = () if layout == "no batch" else (B,), {}
    if padding:
        arguments["key_padding_mask"] = random_mask(padding, (*batch, lengths[1]), dtype)
    if attention:
        lead = (H * (B if batch else 1),) if attention.endswith("3") else ()
        arguments["attn_mask"] = random_mask(attention, (*lead, *lengths), dtype)
    return arguments


def check(units, plain, tensors, close=CLOSE[torch.float64], **arguments):
    """Outputs, weights and gradients of the inputs, of one unit or each of several."""

    def results(unit):
        out, weights = unit(*tensors, **arguments)
        grads = torch.autograd.grad(out, tensors, g.to(out), materialize_grads=True) if out.requires_grad else ()
        return out, weights, grads

    lead = tensors[0].shape[:-1]
    g = torch.randn(*lead, plain.embed_dim, dtype=torch.float64)
    expected, expected_weights, expected_grads = results(plain)
    for unit in units if isinstance(units, tuple) else (units,):
        out, weights, grads = results(unit)
        torch.testing.assert_close(out, expected, **close)
        assert (weights is None) == (expected_weights is None)
        if weights is not None:
            torch.testing.assert_close(weights, expected_weights, **close)
        torch.testing.assert_close(grads, expected_grads, **close)


# All options at the plain widths, and at the others none and the most: all masks of one layout, some of the others.
@pytest.mark.parametrize(
    ("kinds", "layout"),
    [(kinds, LAYOUTS[1]) for kinds in MASKS] + [(kinds, layout) for kinds in MASKS[::3] for layout in LAYOUTS[::2]],
    ids=str,
)
@pytest.mark.parametrize(
    ("widths", "options"),
    [(WIDTHS[0], options) for options in OPTIONS]
    + [(widths, options) for widths in WIDTHS[1:] for options in (OPTIONS[0], OPTIONS[-1])],
    ids=str,
)
def test_equals_the_attention_it_replaces(widths, options, kinds, layout):
    plain = dense(batch_first=layout == "batch first", **widths, **options)
    arguments, tensors = masks(kinds, layout), inputs(layout, **widths)
    units = low_rank(plain, rank=None), low_rank(plain, names=())
    for weight_options in ({"need_weights": False}, {}, {"average_attn_weights": False}):
        check(units, plain, tensors, **arguments, **weight_options)


@pytest.mark.parametrize("kinds", MASKS, ids=str)
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_the_fast_path_of_the_attention_it_replaces(layout, need_weights, kinds):
    plain = dense(batch_first=layout == "batch first").eval()
    unit, (x, *_) = low_rank(plain, rank=None), inputs(layout)
    arguments = masks(kinds, layout, lengths=(L, L))
    with torch.no_grad():
        check(unit, plain, [x, x, x], **arguments, need_weights=need_weights)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_to_dense_is_the_same_function_with_the_same_gradients(widths, options):
    unit = low_rank(dense(batch_first=True, **widths, **options))
    plain, tensors = unit.to_dense(), inputs("batch first", **widths)
    assert type(plain) is nn.MultiheadAttention
    check(unit, plain, tensors)
    template = dense(batch_first=True, **widths, **options)
    shapes = [{name: x.shape for name, x in module.state_dict().items()} for module in (plain, template)]
    assert shapes[0] == shapes[1]

    g = torch.randn(B, L, d, dtype=torch.float64)
    plain(*tensors)[0].backward(g)
    unit(*tensors)[0].backward(g)
    if widths:
        grads = {name: getattr(plain, f"{name}_weight").grad for name in MAPS[:3]}
    else:
        grads = dict(zip(MAPS, plain.in_proj_weight.grad.chunk(3), strict=False))
    for name, grad in (grads | {"out_proj": plain.out_proj.weight.grad}).items():
        item = getattr(unit, name)
        torch.testing.assert_close(
            item.encoder.weight.grad, item.decoder.weight.detach().T @ grad, **CLOSE[torch.float64]
        )
        torch.testing.assert_close(
            item.decoder.weight.grad, grad @ item.encoder.weight.detach().T, **CLOSE[torch.float64]
        )
    if unit.out_proj.bias is not None:
        biases = torch.cat([getattr(unit, name).bias.grad for name in MAPS])
        expected = torch.cat([plain.in_proj_bias.grad, plain.out_proj.bias.grad])
        torch.testing.assert_close(biases, expected, **CLOSE[torch.float64])
    for name in ("bias_k", "bias_v"):
        if getattr(plain, name) is not None:
            torch.testing.assert_close(getattr(unit, name).grad, getattr(plain, name).grad, **CLOSE[torch.float64])


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_there_and_back_is_the_same_to_the_bit(widths):
    plain = dense(**widths, add_bias_kv=True, add_zero_attn=True, dropout=0.25, dtype=torch.bfloat16).eval()
    again = LowRankMultihead.like(plain).to_dense()
    assert set(again.state_dict()) == set(plain.state_dict())
    torch.testing.assert_close(again.state_dict(), plain.state_dict(), atol=0, rtol=0)
    for name in ("dropout", "add_zero_attn", "batch_first", "training", "kdim", "vdim", "_qkv_same_embed_dim"):
        assert getattr(again, name) == getattr(plain, name)


def test_maps_with_and_without_a_bias():
    unit = low_rank(dense(bias=False, batch_first=True), names=())
    unit.k_proj = led(nn.Linear(d, d, dtype=torch.float64))
    check(unit, unit.to_dense(), inputs("batch first"))


@pytest.mark.parametrize("grad", [True, False])
def test_what_is_frozen_stays_frozen(grad):
    plain = dense(add_bias_kv=True)
    plain.in_proj_weight.requires_grad_(False)
    with torch.set_grad_enabled(grad):
        unit = LowRankMultihead.like(plain)
        again = unit.to_dense()
    frozen = {name for name, parameter in unit.named_parameters() if not parameter.requires_grad}
    assert frozen == {"q_proj.weight", "k_proj.weight", "v_proj.weight"}
    assert {name for name, parameter in again.named_parameters() if not parameter.requires_grad} == {"in_proj_weight"}
    with torch.no_grad():
        plain.in_proj_weight.zero_()
    assert unit.q_proj.weight.count_nonzero() == d * d


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kinds", [("float", "float 2"), (None, "bool 3")], ids=str)
@pytest.mark.parametrize("dtype", CLOSE)
def test_dtypes(dtype, kinds, layout):
    plain = dense(dtype, batch_first=layout == "batch first")
    unit, tensors = low_rank(plain, rank=None), inputs(layout, dtype=dtype)
    arguments = masks(kinds, layout, dtype)
    for need_weights in (True, False):
        assert unit(*tensors, **arguments, need_weights=need_weights)[0].dtype == dtype
        with torch.no_grad():
            check(unit, plain, tensors, CLOSE[dtype], **arguments, need_weights=need_weights)


@pytest.mark.parametrize("need_weights", [True, False])
def test_autocast(need_weights):
    plain = dense(torch.float32, add_bias_kv=True)
    unit, tensors = low_rank(plain, rank=None), inputs("batch second", dtype=torch.float32)
    arguments = masks(("bool", "bool 2"), "batch second")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert unit(*tensors)[0].dtype == torch.bfloat16
        check(unit, plain, tensors, CLOSE[torch.bfloat16], **arguments, need_weights=need_weights)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dropout_draws_as_the_attention_it_replaces(layout, need_weights):
    plain = dense(dropout=0.5, batch_first=layout == "batch first")
    unit, tensors, results = low_rank(plain, rank=None), inputs(layout), []
    for module, train in ((plain, True), (unit, True), (plain, False), (unit, False)):
        torch.manual_seed(1)
        results.append(module.train(train)(*tensors, need_weights=need_weights))
    torch.testing.assert_close(results[1], results[0], **CLOSE[torch.float64])
    torch.testing.assert_close(results[3], results[2], **CLOSE[torch.float64])
    assert not torch.allclose(results[0][0], results[2][0])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("padding", [None, "bool"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("lengths", [(L, L), (L, S)])
def test_the_causal_hint_is_taken_as_torch_takes_it(lengths, need_weights, padding, options):
    plain = dense(**options)
    unit, tensors = low_rank(plain, rank=None), inputs("batch second", lengths=lengths)
    arguments = masks((padding, None), "batch second", lengths=lengths)
    arguments["attn_mask"] = torch.ones(lengths, dtype=torch.bool).triu(1)
    check(unit, plain, tensors, **arguments, need_weights=need_weights, is_causal=True)


def test_a_learned_mask_gets_its_gradient():
    plain, tensors = dense(), inputs("batch second")
    mask = torch.randn(L, S, dtype=torch.float64, requires_grad=True)
    for need_weights in (True, False):
        outputs = [
            module(*tensors, attn_mask=mask, need_weights=need_weights)[0] for module in (low_rank(plain, None), plain)
        ]
        grad, expected = (torch.autograd.grad(out.square().sum(), mask) for out in outputs)
        torch.testing.assert_close(grad, expected, **CLOSE[torch.float64])


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_query_without_a_key_is_as_in_torch(need_weights):
    plain, tensors = dense(), inputs("batch second")
    mask = torch.zeros(L, S, dtype=torch.bool)
    mask[3] = True
    out, expected = (
        each(*tensors, attn_mask=mask, need_weights=need_weights)[0] for each in (low_rank(plain, None), plain)
    )
    torch.testing.assert_close(out, expected, **CLOSE[torch.float64], equal_nan=True)


class Products(TorchDispatchMode):
    """The shapes of every matrix product's factors."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.shapes.append(tuple(args[-1].shape))
        return func(*args, **(kwargs or {}))

    def __enter__(self):
        self.shapes = []
        return super().__enter__()


def test_what_reads_one_tensor_shares_one_product():
    unit, (q, k, v) = low_rank(dense()), inputs("batch second", lengths=(L, L))
    decoders = [(3, d)] * 3
    for tensors, encoders in (
        ((q, q, q), [(d, 9)]),
        ((q, k, k), [(d, 3), (d, 6)]),
        ((q, k, v), [(d, 3)] * 3),
        ((q, q, v), [(d, 3)] * 3),
    ):
        with Products() as products:
            out, _ = unit(*tensors)
        assert sorted(products.shapes) == sorted([*encoders, *decoders, (d, 3), (3, d)])
        torch.testing.assert_close(out, unit(*(x.clone() for x in tensors))[0], **CLOSE[torch.float64])


def test_a_hook_sees_its_map_called():
    x = inputs("batch second")[0]
    seen = []
    for names in (MAPS, MAPS[:1], ()):
        unit = low_rank(dense(), names=names)
        expected, _ = unit(x, x, x)
        for name in MAPS:
            getattr(unit, name).register_forward_pre_hook(lambda item, _: seen.append(item))
        torch.testing.assert_close(unit(x, x, x)[0], expected, **CLOSE[torch.float64])
        assert seen == [getattr(unit, name) for name in MAPS]
        seen.clear()


def test_state_dict_and_deepcopy():
    unit = low_rank(dense(add_bias_kv=True), names=MAPS[1:3])
    factors = {f"{name}.{part}" for name in MAPS[1:3] for part in ("encoder.weight", "decoder.weight", "bias")}
    whole = {f"{name}.{part}" for name in ("q_proj", "out_proj") for part in ("weight", "bias")}
    assert set(unit.state_dict()) == factors | whole | {"bias_k", "bias_v"}
    tensors = inputs("batch second")
    before, copy = unit(*tensors)[0], deepcopy(unit)
    torch.testing.assert_close(copy(*tensors)[0], before, atol=0, rtol=0)
    with torch.no_grad():
        copy.v_proj.encoder.weight.zero_()
    torch.testing.assert_close(unit(*tensors)[0], before, atol=0, rtol=0)
    copy.load_state_dict(unit.state_dict())
    torch.testing.assert_close(copy(*tensors)[0], before, atol=0, rtol=0)


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_on_the_meta_device(widths):
    plain = dense()
    with torch.device("meta"):
        real = LowRankMultihead.like(plain)
        unit = LowRankMultihead.like(nn.MultiheadAttention(d, H, add_bias_kv=True, **widths))
    assert not any(parameter.is_meta for parameter in real.parameters())
    assert all(parameter.is_meta for module in (unit, unit.to_dense()) for parameter in module.parameters())
    tensors = [x.to("meta") for x in inputs("batch second", **widths, dtype=torch.float32)]
    assert [x.shape for x in unit(*tensors)] == [(L, B, d), (B, L, S + 1)]


@pytest.mark.parametrize("need_weights", [True, False])
def test_export(need_weights):
    unit, (x, *_) = low_rank(dense(batch_first=True)).eval(), inputs("batch first")
    mask = torch.zeros(B, L, dtype=torch.bool)
    mask[1, 5:] = True
    options = {"key_padding_mask": mask, "need_weights": need_weights}
    names = ("query", "key", "value", "key_padding_mask")
    batch = torch.export.Dim("batch", min=2)
    shapes = {name: {0: batch} for name in names} | {"need_weights": None}
    exported = torch.export.export(unit, (x.detach(),) * 3, options, dynamic_shapes=shapes).module()
    larger, options["key_padding_mask"] = torch.randn(5, L, d, dtype=torch.float64), torch.zeros(5, L) > 0
    torch.testing.assert_close(exported(*(larger,) * 3, **options), unit(*(larger,) * 3, **options))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"is_causal": True}, "attn_mask must be the causal mask where is_causal=True, got None"),
        ({"attn_mask": torch.zeros(S, L)}, r"attn_mask must be bool or float of shape \(7, 11\), got .*\(11, 7\)"),
        ({"attn_mask": torch.zeros(B, L, S)}, r"of shape \(6, 7, 11\), got torch.float32 \(3, 7, 11\)"),
        ({"attn_mask": torch.zeros(L, S).long()}, r"attn_mask must be bool or float .* got torch.int64"),
        ({"key_padding_mask": torch.zeros(B, L)}, r"key_padding_mask must .* \(3, 11\), got torch.float32 \(3, 7\)"),
        ({"key_padding_mask": torch.zeros(S)}, r"key_padding_mask must .* \(3, 11\), got torch.float32 \(1, 11\)"),
        ({"key_padding_mask": torch.zeros(B, S).long()}, r"key_padding_mask must be bool or float .* got torch.int64"),
    ],
)
def test_masks_that_do_not_fit(arguments, message):
    unit = low_rank(dense(batch_first=True))
    for need_weights in (True, False):
        with pytest.raises(ValueError, match=message):
            unit(*inputs("batch first"), **arguments, need_weights=need_weights)


def test_the_signature():
    forward = jaxtyped(typechecker=beartype)(LowRankMultihead.forward)
    unit, (q, k, v) = low_rank(dense(batch_first=True)), inputs("batch first")
    assert forward(unit, q, k, v, **masks(("bool", "float 3"), "batch first"))[0].shape == q.shape
    for wrong in ((q.long(), k, v), (q, k, v, torch.zeros(B, S).long())):
        with pytest.raises(TypeCheckError):
            forward(unit, *wrong)


def test_inputs_that_do_not_fit():
    unit, (q, k, v) = low_rank(dense(batch_first=True)), inputs("batch first")
    for tensors in ((q, k, v[:, 1:]), (q, k[1:], v[1:]), (q[:1], k, v), (q[None], k[None], v[None]), (q[0], k, v)):
        with pytest.raises(ValueError, match="query, key and value must share the batch") as caught:
            unit(*tensors)
        assert str(caught.value).endswith(f"got {[tuple(x.shape) for x in tensors]}")


class Doubled(nn.MultiheadAttention):
    def forward(self, *args, **options):
        return super().forward(*args, **options)


@pytest.mark.parametrize("module", [Doubled(d, H), nn.Linear(d, d)])
def test_what_is_no_multihead_attention(module):
    with pytest.raises(TypeError, match=f"attention must be an nn.MultiheadAttention, got {type(module).__name__}"):
        LowRankMultihead.like(module)


def encoder(layers=2, **options):
    layer = nn.TransformerEncoderLayer(d, H, f, dropout=0.0, batch_first=True, dtype=torch.float64, **options)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=not options.get("norm_first", False))


def compress_attention(model):
    """Full-rank LEDs in every attention of a model's copy."""
    model = deepcopy(model)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.MultiheadAttention):
                setattr(module, name, low_rank(child, rank=None))
    return model


def compress_feed_forward(model):
    model = deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.linear1, layer.linear2 = led(layer.linear1, d), led(layer.linear2, d)
    return model


def compress_all(model):
    return compress_feed_forward(compress_attention(model))


COMPRESS = [compress_attention, compress_feed_forward, compress_all]


def padded(left_aligned=True):
    x, padding = torch.randn(B, L, d, dtype=torch.float64), torch.zeros(B, L, dtype=torch.bool)
    for row, length in zip(padding, (L, 5, 2), strict=True):
        row[length:] = True
    return x, padding if left_aligned else padding.flip(1)


@pytest.fixture
def dense_product(monkeypatch):
    """Counts, and forbids where told so, that the weight of an LED is multiplied out; counts its calls."""
    count = {"weight": 0, "forward": 0}
    weight, forward = LED.weight.fget, LED.forward

    def counted(name, function):
        def call(*args):
            count[name] += 1
            return function(*args)

        return call

    monkeypatch.setattr(LED, "weight", property(counted("weight", weight)))
    monkeypatch.setattr(LED, "forward", counted("forward", forward))
    return count


@NESTED
@pytest.mark.parametrize(
    ("masked", "left_aligned"), [("padding", True), ("padding", False), ("causal", True), ("neither", True)]
)
@pytest.mark.parametrize(("train", "grad"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}], ids=str)
@pytest.mark.parametrize("compress", COMPRESS)
def test_inside_an_encoder(compress, options, train, grad, masked, left_aligned, dense_product):
    plain = encoder(**options).train(train)
    model = compress(plain)
    refuse_fast_path(model)
    x, padding = padded(left_aligned)
    arguments = {"padding": {"src_key_padding_mask": padding}, "causal": {"mask": causal()}, "neither": {}}[masked]
    positions = ~padding if masked == "padding" else slice(None)
    with torch.set_grad_enabled(grad):
        out, expected = model(x, **arguments), plain(x, **arguments)
        torch.testing.assert_close(out[positions], expected[positions], **CLOSE[torch.float64])
        out, expected = model.layers[1](x), plain.layers[1](x)
        torch.testing.assert_close(out, expected, **CLOSE[torch.float64])
    # Of two layers and one more: the output of attention, and both projections of the feed-forward part.
    calls = {compress_attention: 3 * 1, compress_feed_forward: 3 * 2, compress_all: 3 * 3}[compress]
    assert dense_product == {"weight": 0, "forward": calls}


def causal():
    return torch.ones(L, L, dtype=torch.bool).triu(1)


@NESTED
@pytest.mark.parametrize("compress", COMPRESS)
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("grad", [True, False])
def test_an_encoder_of_which_only_a_layer_is_refused(grad, first, compress, dense_product):
    """Never a wrong number and never a crash, though the encoder looks at its first layer's weights."""
    plain, (x, padding) = encoder().eval(), padded()
    model = deepcopy(plain)
    model.layers[first] = compress(plain.layers[first])
    refuse_fast_path(model.layers[first])
    with torch.set_grad_enabled(grad):
        out, expected = (each(x, src_key_padding_mask=padding) for each in (model, plain))
    torch.testing.assert_close(out[~padding], expected[~padding], **CLOSE[torch.float64])
    assert dense_product["forward"] > 0
    if first == 1:
        assert dense_product["weight"] == 0


def test_a_layer_takes_no_fast_path_around_low_rank_attention(dense_product):
    plain, (x, padding) = encoder(layers=1).layers[0].eval(), padded()
    model = compress_attention(plain)
    with torch.no_grad():
        for arguments in ({}, {"src_key_padding_mask": padding}, {"src_mask": causal()}):
            out, expected = model(x, **arguments), plain(x, **arguments)
            torch.testing.assert_close(out[~padding], expected[~padding], **CLOSE[torch.float64])
    assert dense_product == {"weight": 0, "forward": 3}


def test_without_refusal_torch_asks_for_weights(dense_product):
    model, (x, _) = compress_feed_forward(encoder()).eval(), padded()
    with torch.no_grad():
        model(x)
    assert dense_product["weight"] >= 2 * 2
    assert dense_product["forward"] == 2 * 2  # it does not take its fast path with weights that are no plain tensors


@NESTED
@pytest.mark.parametrize("compress", COMPRESS)
def test_nested_input(compress, dense_product):
    plain = encoder(layers=1).layers[0].eval()
    model, (x, padding) = compress(plain), padded()
    refuse_fast_path(model)
    rows = [row[keep] for row, keep in zip(x, ~padding, strict=True)]
    with torch.no_grad():
        out = model(torch.nested.as_nested_tensor(rows)).unbind()
        for row, output in zip(rows, out, strict=True):
            torch.testing.assert_close(output, plain(row), **CLOSE[torch.float64])
    assert dense_product["weight"] == 0


@NESTED
def test_nested_input_that_is_refused():
    unit, (x, padding) = low_rank(dense(batch_first=True)), padded()
    x = torch.nested.as_nested_tensor([row[keep] for row, keep in zip(x, ~padding, strict=True)])
    for arguments in (
        {},
        {"need_weights": False, "is_causal": True},
        {"need_weights": False, "attn_mask": causal()},
        {"need_weights": False, "key_padding_mask": padding},
    ):
        with pytest.raises(ValueError, match="nested inputs must be one tensor, without masks"):
            unit(x, x, x, **arguments)


@MAKING
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_inside_a_whole_transformer(norm_first, batch_first, train, dense_product):
    options = {"norm_first": norm_first, "batch_first": batch_first, "dtype": torch.float64}
    plain = nn.Transformer(d, H, 2, 2, f, dropout=0.0, **options).train(train)
    model = compress_attention(plain)
    refuse_fast_path(model)
    source, target = (torch.randn(B, n, d, dtype=torch.float64) for n in (S, L))
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    arguments = {"tgt_mask": causal(), "memory_key_padding_mask": masks(("bool", None), "b")["key_padding_mask"]}
    out, expected = (each(source, target, **arguments) for each in (model, plain))
    torch.testing.assert_close(out, expected, **CLOSE[torch.float64])
    assert dense_product == {"weight": 0, "forward": 2 * 1 + 2 * 3}


@MAKING
def test_an_encoder_made_of_a_low_rank_layer(dense_product):
    layer = compress_all(encoder(layers=1)).layers[0]
    refuse_fast_path(layer)
    model, (x, padding) = nn.TransformerEncoder(layer, 2).eval(), padded()
    with torch.no_grad():
        model(x, src_key_padding_mask=padding)
    assert dense_product == {"weight": 0, "forward": 2 * 3}


def test_export_of_an_encoder():
    model, (x, padding) = compress_all(encoder()).eval(), padded()
    refuse_fast_path(model)
    arguments = {"src_key_padding_mask": padding}
    exported = torch.export.export(model, (x,), arguments).module()
    torch.testing.assert_close(exported(x, **arguments), model(x, **arguments))


def test_a_refused_layer_stays_so_in_a_copy():
    model = encoder()
    refuse_fast_path(model)
    copy = deepcopy(model)
    assert not copy.use_nested_tensor
    assert [layer.activation_relu_or_gelu for layer in copy.layers] == [0, 0]
