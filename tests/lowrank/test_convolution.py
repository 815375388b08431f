from copy import deepcopy
from itertools import product

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped
from torch import nn

from greenformers.lowrank.convolution import LowRankConv
from greenformers.measure.parameters import parameters

DENSE = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
KERNEL, SPACE = (3, 5, 2), (11, 13, 7)
CLOSE = {
    torch.float64: {"atol": 1e-10, "rtol": 1e-10},
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    torch.bfloat16: {"atol": 0.1, "rtol": 0.1},
    torch.float16: {"atol": 0.02, "rtol": 0.02},
}
MODES = ("zeros", "reflect", "replicate", "circular")
GEOMETRIES = [
    {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "padding_mode": mode}
    for stride, padding, dilation, groups, mode in product((1, 2), (0, 3, "same", "valid"), (1, 2), (1, 2), MODES)
    if not (padding == "same" and stride == 2)
]
UNEQUAL = [
    {"stride": (2, 1, 3), "padding": (1, 3, 2), "dilation": (3, 2, 5), "groups": 2, "padding_mode": mode}
    for mode in MODES
]
# torch says so itself where a kernel of even length is padded to the same length.
EVEN = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")


def dense(dims=2, bias=True, **options):
    groups = options.get("groups", 1)
    options = {"dtype": torch.float64} | options
    return DENSE[dims](3 * groups, 5 * groups, KERNEL[:dims], bias=bias, **options)


def low_rank(dims=2, rank=2, **options):
    unit = LowRankConv.like(dense(dims, **options), rank)
    unit.reset_parameters()
    if unit.bias is not None:
        nn.init.normal_(unit.bias)
    return unit


def factorized(conv):
    """At full rank m, one factor is the identity."""
    m = conv.out_channels // conv.groups
    unit = LowRankConv.like(conv, m)
    with torch.no_grad():
        unit.encoder.copy_(conv.weight)
        unit.decoder.copy_(torch.eye(m).repeat(conv.groups, 1))
        if conv.bias is not None:
            unit.bias.copy_(conv.bias)
    return unit


def inputs(dims=2, groups=1, batch=(2,), dtype=torch.float64):
    return torch.randn(*batch, 3 * groups, *SPACE[:dims], dtype=dtype)


def check_equals_dense(dims, options):
    unit, x = low_rank(dims, **options), inputs(dims, options["groups"]).requires_grad_()
    plain = dense(dims, **options)
    state = {"weight": unit.weight, "bias": unit.bias}
    out, expected = unit(x), torch.func.functional_call(plain, state, x)
    torch.testing.assert_close(out, expected, **CLOSE[torch.float64])

    leaves, g = [x, *unit.parameters()], torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, leaves, g), torch.autograd.grad(expected, leaves, g), **CLOSE[torch.float64]
    )


@EVEN
# In two dimensions all geometries; in one and in three those with groups and gaps.
@pytest.mark.parametrize(
    ("dims", "options"),
    [
        (dims, options)
        for dims, options in product(DENSE, GEOMETRIES)
        if dims == 2 or (options["groups"], options["dilation"]) == (2, 2)
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_equals_the_dense_convolution_of_its_weight(dims, options):
    check_equals_dense(dims, options)


@pytest.mark.parametrize("options", UNEQUAL, ids=MODES)
@pytest.mark.parametrize("dims", DENSE)
def test_every_dimension_has_its_own_sizes(dims, options):
    check_equals_dense(dims, {key: x[:dims] if isinstance(x, tuple) else x for key, x in options.items()})


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("dims", DENSE)
def test_full_rank_equals_the_convolution_it_replaces(dims, dtype, bias, groups):
    conv = dense(dims, bias, groups=groups, dtype=dtype, padding=1)
    unit, x = factorized(conv), inputs(dims, groups, dtype=dtype)
    torch.testing.assert_close(unit.weight, conv.weight, atol=0, rtol=0)
    out = unit(x)
    assert out.dtype == unit.encoder.dtype == dtype
    torch.testing.assert_close(out, conv(x), **CLOSE[dtype])
    out.sum().backward()
    assert all(parameter.grad.dtype == dtype for parameter in unit.parameters())


@pytest.mark.parametrize("dims", DENSE)
def test_input_without_a_batch(dims):
    unit = low_rank(dims, padding=1, padding_mode="reflect")
    x = inputs(dims)
    torch.testing.assert_close(unit(x[0]), unit(x)[0], **CLOSE[torch.float64])


@pytest.mark.parametrize("groups", [1, 3])
def test_weight_is_the_product_of_each_group(groups):
    unit = low_rank(groups=groups, rank=2)
    assert unit.weight.shape == dense(groups=groups).weight.shape
    for i, weight in enumerate(unit.weight.chunk(groups)):
        encoder, decoder = unit.encoder.chunk(groups)[i], unit.decoder.chunk(groups)[i]
        torch.testing.assert_close(weight, torch.einsum("mr,rixy->mixy", decoder, encoder))
        assert torch.linalg.matrix_rank(weight.flatten(1)) == 2


@EVEN
@pytest.mark.parametrize("options", [{}, {"groups": 2, "stride": 2}, {"padding": "same", "padding_mode": "circular"}])
@pytest.mark.parametrize("dims", DENSE)
@pytest.mark.parametrize("bias", [True, False])
def test_to_dense(dims, options, bias):
    unit = low_rank(dims, bias=bias, **options).eval()
    plain, x = unit.to_dense(), inputs(dims, options.get("groups", 1))
    assert type(plain) is DENSE[dims]
    assert repr(plain) == repr(dense(dims, bias, **options))
    assert not plain.training
    assert all(parameter.requires_grad for parameter in plain.parameters())
    torch.testing.assert_close(unit(x), plain(x), **CLOSE[torch.float64])
    assert not unit.requires_grad_(False).to_dense().weight.requires_grad


def test_like_takes_every_option():
    options = {"stride": (2, 1), "padding": (3, 2), "dilation": (1, 2), "groups": 2, "padding_mode": "reflect"}
    conv = dense(**options, dtype=torch.bfloat16, bias=False).eval()
    unit = LowRankConv.like(conv, 2)
    names = ("in_channels", "out_channels", "kernel_size", *options, "training")
    assert [getattr(unit, name) for name in names] == [getattr(conv, name) for name in names]
    assert (unit.rank, unit.bias, unit.encoder.dtype, unit.decoder.dtype) == (2, None, torch.bfloat16, torch.bfloat16)


def test_like_draws_nothing():
    conv, state = dense(), torch.get_rng_state()
    LowRankConv.like(conv, 2)
    assert torch.equal(torch.get_rng_state(), state)


def test_single_sizes_are_written_out():
    unit = LowRankConv(3, 5, (3, 5), 2, stride=2, padding=1, dilation=3)
    assert (unit.stride, unit.padding, unit.dilation) == ((2, 2), (1, 1), (3, 3))


def test_on_the_meta_device():
    conv = dense()
    with torch.device("meta"):
        real = LowRankConv.like(conv, 2)
        inside = LowRankConv(3, 5, (3, 5), 2)
        taken = LowRankConv.like(nn.Conv2d(3, 5, (3, 5)), 2)
    given = LowRankConv(3, 5, (3, 5), 2, device="meta")
    for unit in (inside, taken, given):
        assert all(parameter.is_meta for parameter in unit.parameters())
        assert unit(torch.empty(2, 3, 11, 13, device="meta")).shape == (2, 5, 9, 9)
    assert taken.to_dense().weight.is_meta
    assert not real.encoder.is_meta


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_channels_last(memory_format):
    unit, x = low_rank(groups=2), inputs(groups=2)
    expected = unit(x)
    unit = unit.to(memory_format=memory_format)
    torch.testing.assert_close(unit(x.to(memory_format=memory_format)), expected, **CLOSE[torch.float64])
    torch.testing.assert_close(unit.to_dense()(x), expected, **CLOSE[torch.float64])


@pytest.mark.parametrize("groups", [1, 2])
def test_parameters(groups):
    m, n, r = 5, 3 * 3 * 5, 2
    assert parameters(low_rank(groups=groups, rank=r)) == groups * (r * (m + n) + m)


@pytest.mark.parametrize("groups", [1, 7])
def test_outputs_vary_as_those_of_the_dense_convolution(groups):
    unit = LowRankConv(7 * groups, 131 * groups, (3, 5), 11, groups=groups)
    n = 7 * 15
    squares = []
    for _ in range(200 // groups):
        unit.reset_parameters()
        squares.append(unit.weight.detach().square().mean())
    torch.testing.assert_close(torch.stack(squares).mean(), torch.tensor(1 / (3 * n)), atol=0, rtol=0.03)
    assert unit.bias.count_nonzero() == 0
    unit.reset_parameters(std=0.07)
    torch.testing.assert_close(unit.weight.std(), torch.tensor(0.07), atol=0, rtol=0.2)


def test_state_dict():
    first, second = low_rank(groups=2), low_rank(groups=2)
    shapes = {name: tuple(x.shape) for name, x in first.state_dict().items()}
    assert shapes == {"encoder": (4, 3, 3, 5), "decoder": (10, 2), "bias": (10,)}
    assert set(low_rank(bias=False).state_dict()) == {"encoder", "decoder"}
    second.load_state_dict(first.state_dict())
    x = inputs(groups=2)
    torch.testing.assert_close(second(x), first(x), atol=0, rtol=0)


def test_deepcopy_is_equal_and_apart():
    unit, x = low_rank(), inputs()
    before = unit(x)
    copy = deepcopy(unit)
    torch.testing.assert_close(copy(x), before, atol=0, rtol=0)
    with torch.no_grad():
        copy.encoder.zero_()
    torch.testing.assert_close(unit(x), before, atol=0, rtol=0)


@pytest.mark.parametrize("mode", MODES)
def test_export(mode):
    unit, x = low_rank(groups=2, padding=2, padding_mode=mode), inputs(groups=2)
    exported = torch.export.export(unit, (x,), dynamic_shapes=({0: torch.export.Dim("B", min=2)},))
    larger = inputs(groups=2, batch=(3,))
    torch.testing.assert_close(exported.module()(larger), unit(larger), atol=0, rtol=0)


def test_the_signature():
    checked, unit = jaxtyped(typechecker=beartype), low_rank()
    assert checked(LowRankConv.forward)(unit, inputs()).shape == (2, 5, 9, 9)
    assert checked(LowRankConv.weight.fget)(unit).shape == (5, 3, 3, 5)
    with pytest.raises(TypeCheckError):
        checked(LowRankConv.forward)(unit, inputs().long())


def test_rank_out_of_range():
    for groups, limit in ((1, 5), (5, 1)):
        for rank in (-1, 0, limit + 1):
            with pytest.raises(ValueError, match="rank must be") as caught:
                LowRankConv(5, 5, (3, 5), rank, groups=groups)
            message = f"rank must be in 1..{limit} for {groups} x ({75 // groups} x {limit}) weights, got {rank}"
            assert str(caught.value) == message
    LowRankConv(1, 101, (3, 5), 15)
    with pytest.raises(ValueError, match=r"1\.\.15 .* got 16"):
        LowRankConv(1, 101, (3, 5), 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": ()}, r"kernel_size must have 1\.\.3 sizes, got \(\)"),
        ({"kernel_size": (1, 1, 1, 1)}, r"got \(1, 1, 1, 1\)"),
        ({"groups": 0}, "groups must divide 6 and 4 channels, got 0"),
        ({"groups": 3}, "groups must divide 6 and 4 channels, got 3"),
        ({"groups": 4}, "groups must divide 6 and 4 channels, got 4"),
        ({"padding": "full"}, "full"),
        ({"padding": "same", "stride": 2}, "same"),
        ({"padding_mode": "mirror"}, "mirror"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        LowRankConv(6, 4, options.pop("kernel_size", (3, 5)), 1, **options)


class Scaled(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "module", [nn.ConvTranspose1d(3, 5, 3), nn.ConvTranspose2d(3, 5, 3), Scaled(3, 5, 3), nn.Linear(3, 5)]
)
def test_what_is_no_convolution(module):
    message = f"conv must be an nn.Conv1d, nn.Conv2d or nn.Conv3d, got {type(module).__name__}"
    with pytest.raises(TypeError, match=message):
        LowRankConv.like(module, 1)


def test_repr():
    assert repr(LowRankConv(6, 4, (3,), 2, padding="same", groups=2, bias=False)) == (
        "LowRankConv(6, 4, kernel_size=(3,), rank=2, stride=(1,), padding='same', dilation=(1,), groups=2, "
        "bias=False, padding_mode='zeros')"
    )
