"""Passes that begin where the last one ended: the outputs of a network's finished layers are kept and given again.

Layers are the members of module lists that run once in a pass. A layer is finished when all weights in it are. Of each
list the outputs of the last finished layer are kept; it and those before it answer at once. Those before it answer with
NaN: if the network reads them after all, its outputs show it, and it is run in full.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from greenformers._torch import leaves, map_leaves

Run = Callable[[int], Any]
"""Function that runs the network on the batch with this number."""

PLAIN = (Tensor, int, float, str, type(None))
"""Types that kept outputs may hold: anything else, as a cache of keys and values, may change later in the pass."""


class Reached(Exception):  # noqa: N818
    """All that was needed has been seen: the rest of the network need not run."""


class Replay:
    """The outputs of finished layers, for one state of a network.

    Args:
        model: The network; it is left as it was after every call.
        layers: Paths of the layers, as the function `layers` gives them.
        batches: Number of batches.
        memory: Bytes of outputs; where they need more, none are kept and every pass runs in full.
    """

    def __init__(self, model: nn.Module, layers: Sequence[str], batches: int, memory: float) -> None:
        self.model, self.layers, self.memory = model, layers, memory
        self.outputs: list[dict[str, Any]] = [{} for _ in range(batches)]
        self.off = False

    def advance(self, path: str, run: Run) -> None:
        """Finish the layers before the one that holds the weight at `path`; none if it is in no layer."""
        at = next((place for place, layer in enumerate(self.layers) if path.startswith(layer + ".")), 0)
        finished = self.layers[:at]
        if self.off or not finished or finished[-1] in self.outputs[0]:
            return
        last = {layer.rpartition(".")[0]: layer for layer in finished}.values()
        held = 0
        for number in range(len(self.outputs)):
            fresh: dict[str, Any] = {}
            with self.resumed(number), ExitStack() as stack:
                for layer in finished:
                    if layer not in self.outputs[number]:
                        stack.callback(self._note(layer, fresh, layer == finished[-1]))
                with suppress(Reached):
                    run(number)
            if finished[-1] not in fresh or not all(isinstance(leaf, PLAIN) for leaf in leaves(fresh)):
                self.stop()
                return
            by_layer = {**self.outputs[number], **fresh}
            self.outputs[number] = {
                layer: by_layer[layer] if layer in last else _unknown(by_layer[layer]) for layer in finished
            }
            held += sum(leaf.numel() * leaf.element_size() for leaf in _tensors(fresh[finished[-1]]))
            if held > self.memory:
                self.stop()
                return

    def stop(self) -> None:
        """Keep nothing from here on."""
        self.off, self.outputs = True, [{} for _ in self.outputs]

    def _note(self, layer: str, outputs: dict[str, Any], end: bool) -> Callable[[], None]:
        def hook(_: nn.Module, __: object, out: Any) -> None:
            outputs[layer] = map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, out)
            if end:
                raise Reached

        return self.model.get_submodule(layer).register_forward_hook(hook).remove

    @contextmanager
    def resumed(self, number: int) -> Iterator[None]:
        """A `with` block in which finished layers answer at once, for the batch with this number."""
        with ExitStack() as stack:
            for layer, out in self.outputs[number].items():
                stack.enter_context(_answering(self.model.get_submodule(layer), out))
            yield


def layers(model: nn.Module, run: Callable[[], Any]) -> list[str]:
    """The outermost members of module lists that run once in a pass, in the order in which they do."""
    inside = [name for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and name]
    outer = [name for name in inside if not any(name.startswith(around + ".") for around in inside)]
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
    # A clone each time: later layers may change it in place.
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
    """The same outputs with NaN in all tensors, which then need no bytes of their own."""
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
