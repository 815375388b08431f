"""Passes that begin where the last one ended: what a network's finished layers gave, kept and given again.

Layers are the members of module lists that run once in a pass. A layer is finished when all maps in it are. Of each
list the last finished layer's outputs are kept; it and those before it answer at once. Those before it answer with NaN:
a network that reads them after all shows it, and is run in full.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from greenformers._torch import leaves, map_leaves

Run = Callable[[int], Any]
"""Run the network on the batch with this number."""

PLAIN = (Tensor, int, float, str, type(None))
"""What an answer may hold: anything else, as a cache of keys and values, may change after it was given."""


class Reached(Exception):  # noqa: N818
    """All that was wanted has been seen: the rest of the network need not run."""


class Replay:
    """The outputs of finished layers, for one state of a network.

    Args:
        model: the network; it is left as it was after every call.
        layers: of `layers`.
        batches: how many there are.
        memory: bytes; where outputs need more, none are kept and passes begin at the beginning.
    """

    def __init__(self, model: nn.Module, layers: Sequence[str], batches: int, memory: float) -> None:
        self.model, self.layers, self.memory = model, layers, memory
        self.kept: list[dict[str, Any]] = [{} for _ in range(batches)]
        self.off = False

    def advance(self, path: str, run: Run) -> None:
        """Finish the layers before the one that holds the map at `path`; nothing, if it is in no layer."""
        at = next((place for place, layer in enumerate(self.layers) if path.startswith(layer + ".")), 0)
        finished = self.layers[:at]
        if self.off or not finished or finished[-1] in self.kept[0]:
            return
        last = {layer.rpartition(".")[0]: layer for layer in finished}.values()
        held = 0
        for number in range(len(self.kept)):
            found: dict[str, Any] = {}
            with self.resumed(number), ExitStack() as stack:
                for layer in finished:
                    if layer not in self.kept[number]:
                        stack.callback(self._note(layer, found, layer == finished[-1]))
                with suppress(Reached):
                    run(number)
            if finished[-1] not in found or not all(isinstance(leaf, PLAIN) for leaf in leaves(found)):
                self.stop()
                return
            known = {**self.kept[number], **found}
            self.kept[number] = {layer: known[layer] if layer in last else _unknown(known[layer]) for layer in finished}
            held += sum(leaf.numel() * leaf.element_size() for leaf in _tensors(found[finished[-1]]))
            if held > self.memory:
                self.stop()
                return

    def stop(self) -> None:
        """Keep nothing from here on."""
        self.off, self.kept = True, [{} for _ in self.kept]

    def _note(self, layer: str, found: dict[str, Any], end: bool) -> Callable[[], None]:
        def hook(_: nn.Module, __: object, out: Any) -> None:
            found[layer] = map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, out)
            if end:
                raise Reached

        return self.model.get_submodule(layer).register_forward_hook(hook).remove

    @contextmanager
    def resumed(self, number: int) -> Iterator[None]:
        """The network in a `with` block: finished layers answer at once, for the batch with this number."""
        with ExitStack() as stack:
            for layer, out in self.kept[number].items():
                stack.enter_context(_answering(self.model.get_submodule(layer), out))
            yield


def layers(model: nn.Module, run: Callable[[], Any]) -> list[str]:
    """The outermost members of module lists that run once in a pass, in the order in which they do."""
    inside = [name for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and name]
    outer = [name for name in inside if not any(name.startswith(other + ".") for other in inside)]
    order: list[str] = []
    with ExitStack() as stack:
        for name in outer:
            for child, layer in model.get_submodule(name).named_children():
                note = _called(order, f"{name}.{child}")
                stack.callback(layer.register_forward_hook(note).remove)
        run()
    return [layer for layer in order if order.count(layer) == 1]


def _called(order: list[str], layer: str) -> Callable[..., None]:
    return lambda *_: order.append(layer)


@contextmanager
def _answering(layer: nn.Module, out: Any) -> Iterator[None]:
    before = vars(layer).get("forward")
    # A clone each time: what follows may change it in place.
    layer.forward = lambda *_, **__: map_leaves(_copied, out)
    try:
        yield
    finally:
        if before is None:
            del layer.forward
        else:
            layer.forward = before


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _unknown(out: Any) -> Any:
    """The same with NaN in all tensors, which then need no memory."""
    return map_leaves(
        lambda leaf: (
            leaf.new_full((), torch.nan).expand(leaf.shape)
            if isinstance(leaf, Tensor) and leaf.is_floating_point()
            else leaf
        ),
        out,
    )


def _tensors(out: Any) -> list[Tensor]:
    return [leaf for leaf in leaves(out) if isinstance(leaf, Tensor)]
