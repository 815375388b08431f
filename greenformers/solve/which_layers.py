"""Which layers of a stack to keep: by their places, by how little they change what passes, or by the loss without them.

Places: Sajjad 2020, arXiv:2004.03844. Block influence: Men 2024, arXiv:2403.03853, eq. 1. The run: Gromov 2024,
arXiv:2403.17887, eq. 7; its angle is least where the cosine is most.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greenformers.measure.quality import evaluating
from greenformers.solve.loss import difference
from greenformers.solve.watch import Batch, Loss, call, padding, unpadded

Progress = Callable[[float], None]


def spread(count: int, keep: int) -> list[int]:
    """Evenly spread layers: the first one, and the last one if two are kept."""
    return [round(place * (count - 1) / max(1, keep - 1)) for place in range(keep)]


def without_top(_: int, keep: int) -> list[int]:
    """The first layers."""
    return list(range(keep))


def without_bottom(count: int, keep: int) -> list[int]:
    """The last layers."""
    return list(range(count - keep, count))


def without_middle(count: int, keep: int) -> list[int]:
    """The first and the last layers, of which there is one more at the start where the number is odd."""
    return [*range(keep - keep // 2), *range(count - keep // 2, count)]


def without_alternate(count: int, keep: int) -> list[int]:
    """Without every other layer, from the last but one downwards.

    Raises:
        ValueError: More than every other one would have to go.
    """
    dropped = range(count - 2, -1, -2)[: count - keep]
    if len(dropped) < count - keep:
        raise ValueError(
            f"alternate drops every other layer at most, and keeps {count - len(dropped)} of {count}; got {keep}"
        )
    return [place for place in range(count) if place not in dropped]


BY_PLACE: dict[str, Callable[[int, int], list[int]]] = {
    "even": spread, "top": without_top, "bottom": without_bottom, "symmetric": without_middle,
    "alternate": without_alternate,
}  # fmt: skip
"""Ways to choose by the places of layers: functions of their number and of how many to keep."""


def by_influence(
    model: nn.Module, paths: Sequence[str], keep: int, batches: Sequence[Batch], progress: Progress
) -> list[int]:
    """Without the layers of least influence 1 - E cos(h_l, h_l+1), over the tokens of all batches.

    Args:
        model: The network.
        paths: Paths of the layers of a stack.
        keep: Number of layers to keep.
        batches: Batches of inputs.
        progress: Function that is called with the share that is done.

    Raises:
        ValueError: The layers do not pass on a hidden state of one width, or what the network gives is not finite.
    """
    cosines = _cosines(model, paths, batches, 1, progress)
    dropped = sorted(range(len(paths)), key=lambda place: -cosines[place])[: len(paths) - keep]
    return [place for place in range(len(paths)) if place not in dropped]


def by_run(
    model: nn.Module, paths: Sequence[str], keep: int, batches: Sequence[Batch], progress: Progress
) -> list[int]:
    """Without the run of n layers that turns hidden states least: the one with most E cos(h_l, h_l+n).

    Args and errors are those of `by_influence`.
    """
    count = len(paths) - keep
    cosines = _cosines(model, paths, batches, count, progress)
    first = max(range(keep + 1), key=cosines.__getitem__)
    return [place for place in range(len(paths)) if not first <= place < first + count]


def by_loss(
    model: nn.Module,
    paths: Sequence[str],
    keep: int,
    batches: Sequence[Batch],
    progress: Progress,
    loss: Loss | None = None,
) -> list[int]:
    """Without the layer whose absence costs least, then without the next one, given that the first is gone.

    The cost is the loss, where one is given or the model has one: of labels, or of a language model's next tokens.
    Else it is the squared distance of the outputs (of an encoder: of its pooled states) from those of all layers.

    Args and errors are those of `by_influence`.

    Args:
        model: The network.
        paths: Paths of the layers of a stack.
        keep: Number of layers to keep.
        batches: Batches of inputs.
        progress: Function that is called with the share that is done.
        loss: Loss of the model on a batch, a sum over its tokens or texts.
    """
    layers, left = [model.get_submodule(path) for path in paths], list(range(len(paths)))
    trials = sum(range(keep + 1, len(paths) + 1))
    done = 0
    with evaluating(model), torch.no_grad():
        cost = difference(model, batches, loss)
        gone: set[int] = set()
        while len(left) > keep:
            costs = {}
            for place in left:
                with _without([layers[other] for other in (*gone, place)]):
                    costs[place] = sum(cost(number) for number in range(len(batches)))
                done += 1
                progress(done / trials)
            finite = [place for place in left if isfinite(costs[place])]
            if not finite:
                raise ValueError("what the network gives without one of its layers is not finite on these texts")
            least = min(finite, key=costs.__getitem__)
            gone.add(least)
            left.remove(least)
    return left


@contextmanager
def _without(layers: Sequence[nn.Module]) -> Iterator[None]:
    """A `with` block in which layers pass on what they are given."""

    def passing(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any], out: Any) -> Any:
        x = _input(args, given)
        return x if isinstance(out, Tensor) else (x, *out[1:])

    handles = [layer.register_forward_hook(passing, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _cosines(
    model: nn.Module, paths: Sequence[str], batches: Sequence[Batch], span: int, progress: Progress
) -> list[float]:
    """E cos(h_l, h_l+span) for every l, over all tokens that are no padding."""
    layers, states, held = [model.get_submodule(path) for path in paths], dict[int, Tensor](), dict[str, Tensor]()
    sums, tokens = torch.zeros(len(paths) + 1 - span, dtype=torch.float64), 0

    def watch(place: int) -> Any:
        def see(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any], out: Any) -> None:
            states[place] = _input(args, given)
            if place == 0:
                held.update(masks.at(states[0]))
            states[place + 1] = out if isinstance(out, Tensor) else out[0]

        return see

    handles = [layer.register_forward_hook(watch(place), with_kwargs=True) for place, layer in enumerate(layers)]
    try:
        with evaluating(model), torch.no_grad(), padding(model) as masks:
            for number, batch in enumerate(batches):
                masks.begin(batch)
                states.clear()
                held.clear()
                call(model, batch)
                if len({state.shape for state in states.values()}) != 1:
                    raise ValueError("the layers must pass on hidden states of one shape to be compared")
                rows = [unpadded(state, state.shape[:-1], held).float() for _, state in sorted(states.items())]
                pairs = zip(rows, rows[span:], strict=False)
                sums += torch.stack([F.cosine_similarity(*pair, dim=-1).double().sum() for pair in pairs]).cpu()
                tokens += len(rows[0])
                progress((number + 1) / len(batches))
    finally:
        for handle in handles:
            handle.remove()
    means: list[float] = (sums / tokens).tolist()
    if not all(map(isfinite, means)):
        raise ValueError("the hidden states of the network are not finite on these texts")
    return means


def _input(args: tuple[Any, ...], given: dict[str, Any]) -> Tensor:
    """The hidden state that a layer is given."""
    x = args[0] if args else given.get("hidden_states")
    if not isinstance(x, Tensor):
        raise ValueError("the layers must take a hidden state first to be left out")
    return x


BY_TEXTS: dict[str, Callable[..., list[int]]] = {"influence": by_influence, "run": by_run, "loss": by_loss}
"""Ways to choose that need batches."""
