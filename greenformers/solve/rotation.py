"""Fewer hidden coordinates by rotation: SliceGPT. Ashkboos 2024, arXiv:2401.15024, with one rotation for all layers.

A network whose norms read a stream that is only ever added to, and are all of one form (`greenformers.solve.norms`),
computes the same with the stream x Q for an orthogonal Q, once all that acts on single coordinates is moved into linear
layers. With the mean taken out by M = I - 1 1^T / d (for RMS norms M = I), norm weight w and norm bias b,

    writers:  W -> Q^T M W,  bias -> Q^T M bias,  embedding E -> E M Q
    readers:  W -> W diag(w) Q,  bias -> bias + W b
    norms:    x -> x sqrt(d / d') / sqrt(mean x^2 + eps d / d')

The factor of a norm and its eps are 1 and eps for d' = d; for d' < d the mean over d' coordinates of a stream that has
its energy in them is d / d' times that over d, and the norm is the same function. Q holds the eigenvectors, the largest
first, of the covariance of the inputs of the norms (each position divided by its root mean square, without padding),
summed over the norms: its first d' columns keep most of their energy. The paper has a rotation for every block, between
which each shortcut needs a matrix d' x d'; with one for all there is none, and none of its multiply-adds.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.measure.quality import evaluating
from greenformers.solve.hidden_width import Dimension, HiddenWidth, layer_of
from greenformers.solve.narrow import Exchange, like, rms_norm
from greenformers.solve.norms import NormForm, norm_form, normalised
from greenformers.solve.watch import Batch, call, padding, unpadded


def norm_forms(model: nn.Module, width: HiddenWidth) -> dict[str, NormForm]:
    """The forms of the norms of a hidden width, which must be one that can be rotated.

    Raises:
        ValueError: It is not, with the reason; deletion may do.
    """
    name = type(model).__name__
    forms: dict[str, NormForm] = {}
    for path in width.norms:
        if set(width.norms) & width.sources.get(path, frozenset()):
            raise ValueError(
                f"{name} normalises its hidden states themselves (post-norm), as in {path}, which no rotation passes: "
                'take by="deletion"'
            )
        form = norm_form(model.get_submodule(path))
        if form is None or form.centred != next(iter(forms.values()), form).centred:
            raise ValueError(f'{name} has in {path} another kind of norm than rotation can pass: take by="deletion"')
        forms[path] = form
    for path in width.readers:
        sources = width.sources.get(path, frozenset())
        if len(sources & set(width.norms)) != 1 or len(sources) > 1:
            raise ValueError(
                f'{name} has in {path} a layer that reads other than the output of one norm: take by="deletion"'
            )
    unread = [path for path in width.norms if not any(path in width.sources[reader] for reader in width.readers)]
    if unread:
        raise ValueError(
            f"{name} has no linear layer that reads {unread[0]} and could take in its weight: load it with its head, "
            'or take by="deletion"'
        )
    return forms


def principal(
    model: nn.Module, width: HiddenWidth, batches: Sequence[Batch], progress: Callable[[float], None] = lambda _: None
) -> tuple[Tensor, Tensor]:
    """The eigenvectors of the covariance of all inputs of the norms, and its eigenvalues, the largest first.

    Args:
        model: The network, left as it was.
        width: Its hidden width.
        batches: Batches of examples.
        progress: Function that is called with the share of the batches that is done.

    Returns:
        Eigenvectors as columns (d, d) and eigenvalues (d,), float64.
    """
    centred = norm_forms(model, width)[width.norms[0]].centred
    return directions(model, width, batches, centred=centred, progress=progress)


def directions(
    model: nn.Module,
    width: HiddenWidth,
    batches: Sequence[Batch],
    *,
    centred: bool,
    outputs: bool = False,
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[Tensor, Tensor]:
    """The eigenvectors of the covariance of what norms are given, or give, and its eigenvalues, the largest first.

    Args:
        model: The network, left as it was.
        width: Its hidden width.
        batches: Batches of examples.
        centred: Whether the mean of each position is subtracted, before it is divided by its root mean square.
        outputs: Whether it is of the outputs of the norms, not of their inputs.
        progress: Function that is called with the share of the batches that is done.

    Returns:
        Eigenvectors as columns (d, d) and eigenvalues (d,), float64.

    Raises:
        ValueError: The states are not finite.
    """
    device = next(model.parameters()).device
    covariance = torch.zeros(width.size, width.size, dtype=torch.float64, device=device)

    def see(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        x = out if outputs else args[0]
        rows = normalised(unpadded(x, x.shape[:-1], masks.at(args[0])).double(), centred)
        covariance.addmm_(rows.T, rows)

    with evaluating(model), torch.no_grad(), padding(model) as masks, ExitStack() as stack:
        for path in width.norms:
            stack.callback(model.get_submodule(path).register_forward_hook(see).remove)
        for number, batch in enumerate(batches):
            masks.begin(batch)
            call(model, batch)
            progress((number + 1) / len(batches))
    if not covariance.isfinite().all():
        raise ValueError("the hidden states of the network are not finite on the examples")
    values, vectors = torch.linalg.eigh(covariance)
    return vectors.flip(1), values.flip(0).clamp(min=0)


def rotate(exchange: Exchange, width: HiddenWidth, Q: Tensor) -> None:
    """Rotate the stream of a network by Q (d, d') and cut it to d' coordinates.

    Args:
        exchange: The network.
        width: Its hidden width, where coordinates of shared weights are apart.
        Q: Orthonormal columns, float64.
    """
    model = exchange.model
    forms = norm_forms(model, width)
    centred = forms[width.norms[0]].centred
    d, narrow = Q.shape
    # Embeddings that share a weight still do; a head is read behind a norm, whose weight it takes in.
    shared: dict[tuple[int, bool], nn.Parameter] = {}
    for path in dict.fromkeys((*width.writers, *width.readers)):
        module = model.get_submodule(path)
        source = (
            next(iter(width.sources.get(path, frozenset()) & set(width.norms)), None) if path in width.readers else None
        )
        exchange.parameters(path, _rotated(module, width.dimensions[path], Q, centred, forms.get(source or ""), shared))
    for path, form in forms.items():
        norm = rms_norm(model.get_submodule(path), narrow, form.eps * d / narrow)
        nn.init.constant_(norm.weight, (d / narrow) ** 0.5)
        exchange.module(path, norm)


def _rotated(
    module: nn.Module, dimensions: Sequence[Dimension], Q: Tensor, centred: bool, form: NormForm | None,
    shared: dict[tuple[int, bool], nn.Parameter],
) -> dict[str, nn.Parameter]:  # fmt: skip
    """The parameters of a writer or reader in the rotated stream; `form` is that of the norm that it reads."""
    layer = layer_of(module)
    assert layer is not None
    inputs = set(layer.inputs)
    values: dict[str, Tensor] = {name: getattr(module, name).detach().double() for name, _ in dimensions}
    held: Any = module
    read = [dimension for dimension in dimensions if dimension in inputs]
    if form is not None and form.bias.any():
        ((name, at),) = read
        shift = values[name].movedim(at, -1) @ form.bias
        values["bias"] = shift if held.bias is None else held.bias.detach().double() + shift
    for name, at in dimensions:
        x = values[name].movedim(at, -1)
        if (name, at) in inputs:
            x = x if form is None else x * form.weight
        elif centred:
            x = x - x.mean(-1, keepdim=True)
        values[name] = (x @ Q).movedim(-1, at)
    rotated = {}
    for name, value in values.items():
        before = getattr(module, name)
        if before is None:
            rotated[name] = like(held.weight, value)
        else:
            rotated[name] = shared.setdefault((id(before), bool(read)), like(before, value))
    return rotated


def unit_columns(left: Tensor, d: int) -> Tensor:
    """The matrix (d, d') that picks the coordinates with the numbers `left`, float64."""
    return torch.eye(d, dtype=torch.float64, device=left.device)[:, left]
