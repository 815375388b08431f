"""Second derivatives, transforms of functions and checkpoints: right, or refused in one line, whatever the loss."""

from collections.abc import Callable

import pytest
import torch
from cases import draw, each_kind_form, holes
from rows import Row
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

N = 11
TILES = {
    "sliding_window", "cascade", "local_blocks", "sparse_strided", "sparse_fixed", "longformer", "bigbird", "etc",
}  # fmt: skip
# torch says so where a transform runs an operator example by example, as it does its attention.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

LOSSES = {"linear": lambda out, weight: (out * weight).sum(), "square": lambda out, weight: (out**2 * weight).sum()}
each_loss = pytest.mark.parametrize("loss", LOSSES)


def inputs(row: Row, count: int = 2) -> list[Tensor]:
    """Different ones, as many as the mechanism takes: queries that are keys are given once."""
    q, k, v = draw(N, N, batch=count)
    return [q, v] if row.build().shares_qk else [q, k, v]


def three(given: list[Tensor] | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (given[0], *given) if len(given) == 2 else tuple(given)


def gradients(value: Tensor, given: list[Tensor], **options: bool) -> list[Tensor]:
    """Zeros where nothing of the value is of an input."""
    grads = torch.autograd.grad(value, given, allow_unused=True, **options)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(given, grads, strict=True)]


def second(
    run: Callable[..., Tensor], row: Row, loss: Callable[[Tensor, Tensor], Tensor], mask: Tensor
) -> list[Tensor]:
    """Derivatives of a sum over gradients."""
    given, weight = [x.requires_grad_() for x in inputs(row)], draw(N, N, seed=3)[0] * mask[:, None, :, None]
    first = gradients(loss(run(*three(given), mask), weight), given, create_graph=True)
    total = sum((grad.square().sum() for grad in first), torch.zeros(()))
    return gradients(total, given) if total.requires_grad else [torch.zeros_like(x) for x in given]


@each_loss
@each_kind_form
def test_second_derivatives(row: Row, causal: bool, loss: str) -> None:
    """Those of the formula, but where tiles have none; torch's own fused kernel has none either, and says so."""
    mechanism, mask = row.build(causal=causal).double().eval(), holes(N)
    with sdpa_kernel(SDPBackend.MATH):
        if row.name in TILES:
            with pytest.raises(RuntimeError, match="attention in tiles has no second derivative: create_graph must be"):
                second(mechanism, row, LOSSES[loss], mask)
            return
        derivatives = second(mechanism, row, LOSSES[loss], mask)
    expected = second(lambda *given: row.reference(mechanism, *given), row, LOSSES[loss], mask)
    torch.testing.assert_close(derivatives, expected, atol=1e-9, rtol=1e-9)


@each_kind_form
def test_transforms_of_functions(row: Row, causal: bool) -> None:
    """Gradients of each example by itself: `vmap` over `grad`."""
    mechanism = row.build(causal=causal).double().eval()
    weight = draw(N, N, seed=3)[0]

    def value(weight: Tensor, *given: Tensor) -> Tensor:
        return (mechanism(*(x[None] for x in three(given)))[0] * weight).sum()

    numbers = tuple(range(1, 1 + len(inputs(row))))
    transformed = torch.func.vmap(torch.func.grad(value, numbers))
    if row.name == "etc" and row.options["clip"] is not None:
        with pytest.raises(RuntimeError, match=r"etc is not for torch\.func"):
            transformed(weight, *inputs(row))
        return
    given = [x.requires_grad_() for x in inputs(row)]
    expected = gradients((mechanism(*three(given)) * weight).sum(), given)
    torch.testing.assert_close(list(transformed(weight, *inputs(row))), expected, atol=1e-9, rtol=1e-9)


@each_kind_form
def test_transforms_under_a_mask(row: Row, causal: bool) -> None:
    mechanism, mask = row.build(causal=causal).double().eval(), holes(N)
    weight = draw(N, N, seed=3)[0] * mask[:, None, :, None]

    def value(*given: Tensor) -> Tensor:
        return (mechanism(*three(given), mask) * weight).sum()

    transformed = torch.func.grad(value, tuple(range(len(inputs(row)))))
    if row.name == "bigbird":
        with pytest.raises(ValueError, match="padding must be 'batch' where bigbird is traced with a mask"):
            transformed(*inputs(row))
        return
    if row.name == "etc" and row.options["clip"] is not None:
        return  # refused, see above
    given = [x.requires_grad_() for x in inputs(row)]
    torch.testing.assert_close(list(transformed(*inputs(row))), gradients(value(*given), given), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("reentrant", [False, True])
@each_kind_form
def test_checkpoints(row: Row, causal: bool, reentrant: bool) -> None:
    mechanism, mask = row.build(causal=causal).double(), holes(N)

    def all_gradients(recomputed: bool) -> list[Tensor | None]:
        given = [x.requires_grad_() for x in inputs(row)]
        mechanism.zero_grad()
        if recomputed:
            out = checkpoint(lambda *given: mechanism(*three(given), mask), *given, use_reentrant=reentrant)
        else:
            out = mechanism(*three(given), mask)
        (out**2).sum().backward()
        return [x.grad for x in [*given, *mechanism.parameters()]]

    torch.testing.assert_close(all_gradients(True), all_gradients(False), atol=1e-12, rtol=1e-12)
