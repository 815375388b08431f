"""ISAB and PMA against the Set Transformer's formulas, written out one query and head at a time."""

import math

import pytest
import torch
import torch.nn.functional as F
from beartype import beartype
from jaxtyping import jaxtyped

from greenformers.blocks import Size, build, names
from greenformers.blocks._mab import MAB
from greenformers.lowrank.linear import LED
from greenformers.measure.flops import flops

SIZE = Size(width=15, heads=3, hidden=31, max_len=64)
B, N = 5, 11
OPTIONS = {"isab": {"m": 7}, "pma": {"k": 2}}
EXACT = {"rtol": 1e-9, "atol": 1e-11}
blocks = pytest.mark.parametrize("name", ["isab", "pma"])


def make(name, size=SIZE, **options):
    """In double, with parameters that are all at random."""
    torch.manual_seed(0)
    return randomize(build(name, size, **OPTIONS[name] | options).double())


def randomize(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module


def draw(length=N):
    torch.manual_seed(1)
    return torch.randn(B, length, SIZE.width, dtype=torch.float64)


def masks():
    """Holes anywhere; of the last two examples one position, and none, are kept."""
    torch.manual_seed(2)
    mask = torch.rand(B, N) < 0.6
    mask[-2] = torch.arange(N) == 4
    mask[-1] = False
    return mask


# The oracle. One example; only what is kept is there.


def linear(layer, x):
    return torch.stack([layer.weight @ row + layer.bias for row in x]) if len(x) else x


def norm(layer, row):
    centred = row - row.mean()
    return layer.weight * centred / torch.sqrt((centred**2).mean() + layer.eps) + layer.bias


def mab(module, X, Y, *, scale=None, residual="projected"):
    width, heads = SIZE.width, module.heads
    scale = width**-0.5 if scale is None else scale
    Q, K, V = linear(module.q, X), linear(module.k, Y), linear(module.v, Y)
    rows = []
    for i in range(len(X)):
        outputs = []
        for head in range(heads):
            own = slice(head * width // heads, (head + 1) * width // heads)
            weights = [torch.exp(scale * Q[i, own] @ key[own]) for key in K]
            total = torch.zeros(width // heads, dtype=X.dtype)
            for weight, value in zip(weights, V, strict=True):
                total = total + weight / sum(weights) * value[own]
            outputs.append(total)
        H = norm(module.attention_norm, (Q if residual == "projected" else X)[i] + torch.cat(outputs))
        rFF = torch.clamp(module.output.weight @ H + module.output.bias, min=0)
        rows.append(norm(module.feed_forward_norm, H + rFF))
    return torch.stack(rows) if rows else X


def oracle(module, x):
    if module.__class__.__name__ == "Isab":
        return mab(module.outer, x, mab(module.inner, module.I, x))
    return mab(module.mab, module.S, torch.clamp(linear(module.up, x), min=0))


def unmasked(name, out, mask):
    """Of ISAB the positions that are kept; of PMA all seeds' outputs."""
    return out if mask is None or name == "pma" else out[mask]


@blocks
@pytest.mark.parametrize("ranks", [{}, {"q": 3, "up": 2, "output": 5}], ids=["dense", "led"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_outputs_and_gradients_are_those_of_the_formula(name, masked, ranks):
    size = Size(width=15, heads=3, hidden=31, max_len=64, ranks=ranks)
    module, x, mask = make(name, size), draw().requires_grad_(), masks() if masked else None
    out, memory = module(x, mask)
    assert memory is None
    rows = [oracle(module, example if mask is None else example[mask[b]]) for b, example in enumerate(x)]
    expected = torch.cat(rows) if name == "isab" and masked else torch.stack(rows)
    out = unmasked(name, out, mask)
    torch.testing.assert_close(out, expected, **EXACT)
    weights = torch.randn_like(out)
    leaves = [x, *module.parameters()]
    actual = torch.autograd.grad((out * weights).sum(), leaves)
    for grad, expected_grad in zip(actual, torch.autograd.grad((expected * weights).sum(), leaves), strict=True):
        torch.testing.assert_close(grad, expected_grad, **EXACT)


@blocks
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_the_order_of_positions(name, masked):
    module, x, mask = make(name), draw(), masks() if masked else None
    order = torch.randperm(N)
    moved = None if mask is None else mask[:, order]
    out, other = module(x, mask)[0], module(x[:, order], moved)[0]
    if name == "isab":
        assert not torch.allclose(other, out)
        out = out[:, order]
    torch.testing.assert_close(unmasked(name, other, moved), unmasked(name, out, moved), **EXACT)


@blocks
@pytest.mark.parametrize("content", [torch.nan, torch.inf, 1e30])
def test_contents_of_padding_change_nothing(name, content):
    module, x, mask = make(name), draw(), masks()
    filled = x.masked_fill(~mask[..., None], content).requires_grad_()
    out = module(filled, mask)[0]
    assert out.isfinite().all()
    assert torch.equal(unmasked(name, out, mask), unmasked(name, module(x, mask)[0], mask))
    out.sum().backward()
    assert filled.grad.isfinite().all()
    assert not filled.grad[~mask].any()


@blocks
def test_more_padding_changes_nothing(name):
    module, x, mask = make(name), draw(), masks()
    out = module(F.pad(x, (0, 0, 13, 17), value=3.0), F.pad(mask, (13, 17)))[0]
    if name == "isab":
        out = out[:, 13 : 13 + N]
    torch.testing.assert_close(unmasked(name, out, mask), unmasked(name, module(x, mask)[0], mask), **EXACT)


@blocks
def test_a_mask_that_keeps_all_is_none(name):
    module, x = make(name), draw()
    torch.testing.assert_close(module(x, torch.ones(B, N, dtype=torch.bool))[0], module(x)[0], **EXACT)


# MAB, where its details decide.


@pytest.fixture
def attention():
    torch.manual_seed(0)
    return randomize(MAB(SIZE).double())


@pytest.mark.parametrize(
    "wrong", [{"scale": (SIZE.width // SIZE.heads) ** -0.5}, {"residual": "x"}], ids=["scale of a head", "residual X"]
)
def test_the_scale_is_of_the_full_width_and_the_residual_projected(attention, wrong):
    X, Y = draw()[:2], draw(13)[:2]
    out = attention(X, Y)
    torch.testing.assert_close(out, torch.stack([mab(attention, *pair) for pair in zip(X, Y, strict=True)]), **EXACT)
    other = torch.stack([mab(attention, *pair, **wrong) for pair in zip(X, Y, strict=True)])
    assert (out - other).abs().max() > 0.01


def test_queries_that_all_examples_share(attention):
    X, Y = draw()[:1], draw(13)
    torch.testing.assert_close(attention(X, Y), attention(X.expand(B, -1, -1), Y), **EXACT)


def test_without_a_key_the_attention_is_0(attention):
    X, Y = draw(), draw(13)
    mask = torch.ones(B, 13, dtype=torch.bool)
    mask[1] = False
    out = attention(X, Y, mask)
    torch.testing.assert_close(out[1], mab(attention, X[1], Y[1, :0]), **EXACT)
    torch.testing.assert_close(out[2], mab(attention, X[2], Y[2]), **EXACT)


def test_dropout_is_of_the_position_wise_map():
    torch.manual_seed(0)
    module = randomize(MAB(Size(width=15, heads=3, hidden=31, max_len=64, dropout=1.0)).double())
    X, Y = draw(), draw(13)
    whole = module.eval()(X, Y)
    dropped = module.train()(X, Y)
    assert not torch.allclose(whole, dropped)
    torch.nn.init.zeros_(module.output.weight)
    torch.nn.init.zeros_(module.output.bias)
    torch.testing.assert_close(module.eval()(X, Y), dropped, **EXACT)


# How they are made.


@blocks
def test_registered(name):
    assert name in names()
    assert build(name, SIZE).state_dict().keys() == make(name).state_dict().keys()


def test_defaults():
    assert build("isab", SIZE).I.shape == (16, 15)
    assert build("pma", SIZE)(torch.randn(B, N, 15))[0].shape == (B, 1, 15)
    assert build("pma", SIZE).keeps_length is False


@pytest.mark.parametrize(("name", "option", "parameter"), [("isab", "m", "I"), ("pma", "k", "S")])
def test_learned_points_are_drawn_as_the_authors_do(name, option, parameter):
    size = Size(width=128, heads=2, hidden=8, max_len=8)
    points = getattr(build(name, size, **{option: 31}), parameter)
    bound = math.sqrt(6 / (32 * 128))
    assert 0.99 * bound < points.abs().max() <= bound
    assert points.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


@blocks
def test_ranks(name):
    module = build(name, Size(width=15, heads=3, hidden=31, max_len=64, ranks={"q": 3}))
    low = {path.rsplit(".")[-1]: part.rank for path, part in module.named_modules() if isinstance(part, LED)}
    assert low == {"q": 3}


@blocks
def test_made_on_the_meta_device_it_is_filled_afterwards(name):
    with torch.device("meta"):
        module = build(name, SIZE, **OPTIONS[name])
    x, mask = torch.empty(B, N, 15, device="meta"), torch.empty(B, N, dtype=torch.bool, device="meta")
    assert module(x, mask)[0].shape == (B, N if name == "isab" else 2, 15)
    module.to_empty(device="cpu")
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            torch.nn.init.constant_(parameter, torch.nan)
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    assert all(parameter.isfinite().all() for parameter in module.parameters())


@blocks
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_types_are_near(name, dtype):
    module, x, mask = make(name), draw(), masks()
    exact = module(x, mask)[0]
    out = module.to(dtype)(x.to(dtype), mask)[0]
    assert out.dtype == dtype
    far = unmasked(name, out.double() - exact, mask).abs().max()
    assert far < (0.2 if dtype == torch.bfloat16 else 1e-5)


@blocks
def test_shapes_in_signatures(name):
    module = make(name)
    jaxtyped(typechecker=beartype)(type(module).forward)(module, draw(), masks())


@blocks
def test_growth_is_linear(name):
    module = build(name, SIZE)
    first, second, third = (flops(lambda n=n: module(torch.randn(2, n, 15))) for n in (64, 128, 192))
    assert third - second == second - first > 0


@blocks
@pytest.mark.parametrize("count", [0, -1])
def test_an_option_out_of_range(name, count):
    option = "m" if name == "isab" else "k"
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got {count}"):
        build(name, SIZE, **{option: count})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("isab", "isab has no causal form: its inducing points see all positions"),
        ("pma", "pma has no causal form: its seeds see all positions"),
    ],
)
def test_no_causal_form(name, why):
    with pytest.raises(ValueError, match=why):
        build(name, Size(width=15, heads=3, hidden=31, max_len=64, causal=True))


@blocks
def test_no_memory(name):
    with pytest.raises(ValueError, match=rf"{name} takes no memory, got one \(5, 2, 15\)"):
        make(name)(draw(), None, draw(2))
