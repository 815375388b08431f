"""What is Linformer's own: its matrices, its limit, its rank-space form, its options."""

import pytest
import torch
from cases import draw, holes

from greenformers.attention import Shape, build

SHAPE = Shape(heads=3, head_dim=5, max_len=11)


def network(sharing):
    """The mechanisms of 12 layers of 12 heads."""
    layers = [build("linformer", Shape(12, 5, 7, layer=i, layers=12), k=3, sharing=sharing) for i in range(12)]
    for layer in layers[1:]:
        layer.shared(layers[0])
    return layers


@pytest.mark.parametrize(
    ("sharing", "matrices"), [("none", 288), ("headwise", 24), ("key_value", 12), ("layerwise", 1)]
)
def test_the_number_of_matrices_is_the_papers(sharing, matrices):
    distinct = {id(parameter): parameter for layer in network(sharing) for parameter in layer.parameters()}
    assert sum(parameter.numel() for parameter in distinct.values()) == matrices * 3 * 7


@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value", "layerwise"])
def test_each_layer_and_head_has_the_k_given_for_it(sharing):
    grid = [5, [2, 7, 3]]
    layers = [build("linformer", Shape(3, 5, 11, layer=i, layers=2), k=grid, sharing=sharing) for i in range(2)]
    assert [layer.k_per_head for layer in layers] == [[5, 5, 5], [2, 7, 3]]
    assert [layer.k for layer in layers] == [5, 7]
    # As many rows as the layer uses; one E for all layers serves the one that uses most.
    assert [layer.E.shape[1] for layer in layers] == ([7, 7] if sharing == "layerwise" else [5, 7])


def test_k_is_128_unless_the_sequence_is_shorter():
    assert [build("linformer", Shape(3, 5, length)).k for length in (127, 128, 129)] == [127, 128, 128]


@pytest.mark.parametrize("projection", ["linear", "convolution"])
def test_layers_that_share_learn_as_one(projection):
    shapes = [Shape(3, 5, 11, layer=i, layers=2) for i in range(2)]
    first, second = (build("linformer", shape, k=5, sharing="layerwise", projection=projection) for shape in shapes)
    assert second.E is not first.E
    second.shared(first)
    assert second.E is first.E
    assert (first.shared_parameters, second.shared_parameters) == ((), ("E",))
    second(*draw(7, 11, dtype=torch.float32)).sum().backward()
    assert first.E.grad.any()


def identity(module):
    """Project onto the sequence itself."""
    with torch.no_grad():
        for parameter in module.parameters():
            linear = module.projection == "linear"
            parameter.copy_(torch.eye(11).expand_as(parameter) if linear else torch.ones_like(parameter))
    return module.double()


@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value", "layerwise"])
def test_equals_full_where_it_projects_onto_the_sequence_itself(sharing):
    q, k, v = draw(7, 11)
    module = identity(build("linformer", SHAPE, k=11, sharing=sharing))
    torch.testing.assert_close(module(q, k, v), build("full", SHAPE)(q, k, v), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("projection", ["mean", "max", "convolution"])
def test_windows_of_one_equal_full_under_its_mask(projection):
    q, k, v = draw(7, 11)
    module, mask = identity(build("linformer", SHAPE, k=11, projection=projection)), holes(11)
    torch.testing.assert_close(module(q, k, v, mask), build("full", SHAPE)(q, k, v, mask), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sharing", ["headwise", "key_value", "layerwise"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("k", [5, [[5, 2, 3]]])
def test_reducing_first_is_the_same_function(sharing, masked, k):
    module, (q, keys, values) = build("linformer", SHAPE, k=k, sharing=sharing).double(), draw(7, 11)
    mask = holes(11) if masked else None
    assert module.can_reduce

    def reduced(x, role):
        flat = module.reduce(x.transpose(1, 2).flatten(2), mask, role=role)  # (B, k, H D)
        return flat.unflatten(2, (3, 5)).transpose(1, 2)

    out = module.attend(q, reduced(keys, "k"), reduced(values, "v"))
    torch.testing.assert_close(out, module(q, keys, values, mask), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value", "layerwise"])
@pytest.mark.parametrize("masked", [False, True])
def test_heads_that_lie_side_by_side_are_projected_to_the_same(sharing, masked):
    module = build("linformer", SHAPE, k=4, sharing=sharing).double()
    apart = [x.requires_grad_() for x in draw(9, 9)]
    beside = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in apart]
    assert beside[1].transpose(1, 2).is_contiguous() != apart[1].transpose(1, 2).is_contiguous()
    mask = holes(9, len(apart[0])) if masked else None
    out, expected = module(*beside, mask), module(*apart, mask)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    leaves = list(module.parameters())
    g = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, [*beside, *leaves], g), torch.autograd.grad(expected, [*apart, *leaves], g),
        atol=1e-12, rtol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("role", ["k", "v"])
def test_reduction_is_linear_over_positions(role):
    module = build("linformer", SHAPE, k=5).double()
    x, W = torch.randn(2, 11, 17, dtype=torch.float64), torch.randn(17, 13, dtype=torch.float64)
    mask = holes(11)
    torch.testing.assert_close(
        module.reduce(x, mask, role=role) @ W, module.reduce(x @ W, mask, role=role), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(
    "options", [{"sharing": "none"}, {"projection": "mean"}, {"projection": "max"}, {"projection": "convolution"}]
)
def test_where_reduction_is_not_exact_it_is_refused(options):
    module = build("linformer", SHAPE, k=5, **options)
    assert not module.can_reduce
    with pytest.raises(NotImplementedError, match="Linformer has no linear reduction"):
        module.reduce(torch.randn(2, 11, 15), role="k")


@pytest.mark.parametrize("length", [0, 12])
def test_what_is_too_long_or_empty_is_not_reduced(length):
    with pytest.raises(ValueError, match=rf"the number of keys must be in 1\.\.11, got {length}"):
        build("linformer", SHAPE, k=5).reduce(torch.randn(2, length, 15), role="k")


def test_a_convolution_starts_near_the_mean():
    torch.manual_seed(0)
    kernel = build("linformer", Shape(3, 64, 4096), k=128, projection="convolution").E
    assert kernel.mean().item() == pytest.approx(1 / 32, rel=0.02)
    assert kernel.std().item() == pytest.approx(0.1 / 32, rel=0.1)


@pytest.mark.parametrize(("k", "length"), [(128, 4096), (5, 12), (7, 7), (1, 3)])
def test_the_projections_start_as_means_over_windows_that_cover_the_length(k, length):
    module = build("linformer", Shape(2, 3, length), k=k)
    for matrix in (module.E[0], module.F[0]):
        assert torch.allclose(matrix.sum(-1), torch.ones(k))
        assert ((matrix > 0).sum(0) == 1).all()  # each position in one window
        sizes = (matrix > 0).sum(-1)
        assert sizes.max() - sizes.min() <= 1
        assert all(row.nonzero().diff(dim=0).eq(1).all() for row in matrix)  # of neighbours


def test_the_first_windows_are_spread_over_the_whole_length():
    # Layers and heads with a smaller k use the first rows of a shared E.
    matrix = build("linformer", Shape(1, 3, 64), k=16).E[0]
    starts = matrix[:4].argmax(-1).sort().values
    assert starts.tolist() == [0, 16, 32, 48]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, r"k must be in 1\.\.11 \(the longest sequence\), got 0"),
        ({"k": 12}, r"k must be in 1\.\.11 \(the longest sequence\), got 12"),
        ({"k": [5, 5]}, "k must have one entry a layer, 1, got 2"),
        ({"k": [[5, 5]]}, "k of a layer must have one entry a head, 3, got 2"),
        ({"k": [[5, 5, 12]]}, r"k must be in 1\.\.11 .*got 12"),
        ({"k": [[5, 3, 2]], "projection": "mean"}, "k per head needs projection 'linear', got 'mean'"),
        ({"sharing": "heads"}, "sharing must be one of none, headwise, key_value, layerwise; got 'heads'"),
        ({"projection": "conv"}, "projection must be one of linear, mean, max, convolution; got 'conv'"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build("linformer", SHAPE, **options)


def test_layers_share_only_what_fits():
    other = build("linformer", Shape(3, 5, 11, layer=1, layers=2), k=[5, 5], sharing="layerwise")
    with pytest.raises(ValueError, match=r"layerwise sharing needs an E \(1, 5, 11\) in layer 0, got none"):
        other.shared(build("full", SHAPE))
    with pytest.raises(ValueError, match=r"in layer 0, got \(1, 3, 11\)"):
        other.shared(build("linformer", SHAPE, k=3, sharing="layerwise"))
