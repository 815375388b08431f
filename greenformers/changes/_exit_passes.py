"""Ways through a stack of layers with exits: each layer of the stack asks the way before it computes.

A way is called with the number of the layer, the layer's own `forward` and its arguments, and returns what the layer
shall return: `Early` lets texts leave, `Seen` notes the states, `Tail` goes past all layers with states of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from greenformers.changes._exit_modules import SCORES, Exit, Rule

REGROUP = 8
"""Texts that have left are taken out of a batch once they are one in so many; fewer cost less than the copies."""

STATES = "hidden_states"
"""The name of the states among the arguments of a layer, where they are not the first."""


class Way(Protocol):
    """A way through the stack."""

    def __call__(self, place: int, layer: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """What the layer of this number returns."""


class Seen:
    """All layers, of which the states are noted.

    Attributes:
        entered: States (B, N, d) that enter the stack.
        states: States after each layer.
        output: What the last layer returns.
        sizes: First dimension of every tensor that layers are given, by the name of the argument.
    """

    def __init__(self) -> None:
        self.entered: Any = None
        self.states: list[Tensor] = []
        self.output: Any = None
        self.sizes: dict[str, int] = {}

    def __call__(self, place: int, layer: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        self.note(args, options)
        output = layer(*args, **options)
        self.note_output(output)
        return output

    def note(self, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Note what a layer is given."""
        if not self.states:
            self.entered = entering(args, options)
        self.sizes |= {name: len(x) for name, x in named((list(args), dict(options))) if x.dim()}

    def note_output(self, output: Any) -> None:
        """Note what a layer returns."""
        self.output = output
        self.states.append(first_of(output))


class Tail:
    """No layer: what comes after the stack gets the states given.

    Args:
        states: States (B, N, d).
        like: What a layer returns.
    """

    def __init__(self, states: Tensor, like: Any) -> None:
        self._output = instead(like, states)

    def __call__(self, place: int, layer: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        return self._output


class Early:
    """Texts leave by the first exit that is sure enough, and layers after the last one has left are not computed.

    A text that leaves is written down. Those that go on are selected, from the states and from every argument whose
    first dimension is the batch, once an eighth has left. After the last layer all are in their places again.

    Args:
        exits: Exits by the number of the layer that they stand after.
        rule: When a text leaves.
        last: Number of the last layer.
        mask: Positions (B, N) that are no padding; None where all are.
        shared: Names of arguments that the texts of a batch share, whatever their first dimension.

    Attributes:
        places: Number of the layer after which each text has left, (B,), that of the last one where it has not; None
            before the first layer, and for states that are not one sequence a text, of which nobody leaves.
        answers: z of the exits by which texts have left (B, m), 0 of other texts; None where none has.
    """

    def __init__(
        self, exits: Mapping[int, Exit], rule: Rule, last: int, mask: Tensor | None, shared: Sequence[str] = ()
    ) -> None:
        self.exits, self.rule, self.last, self.mask, self.shared = exits, rule, last, mask, shared
        self.places: Tensor | None = None
        self.answers: Tensor | None = None
        self._final: Tensor | None = None
        self._output: Any = None

    def __call__(self, place: int, layer: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        if place == 0:
            self._begin(entering(args, options))
        if self.places is None:
            return layer(*args, **options)
        if self._left < len(self._gone):
            args, options = self._own((list(args), dict(options)))
            self._output = layer(*args, **options)
            if place in self.exits and place < self.last:
                self._judge(place)
        return self._together() if place == self.last else self._output

    def _begin(self, states: Tensor) -> None:
        if states.dim() != 3 or not len(states) or (self.mask is not None and self.mask.shape != states.shape[:2]):
            return
        device, count = states.device, len(states)
        if self.mask is not None and bool(self.mask.all()):
            self.mask = None  # of which the means are faster
        self.places = torch.full((count,), self.last, device=device)
        # Of those that still run: places in the batch, whether and how many have left, streaks, and what was said last.
        self._rows = torch.arange(count, device=device)
        self._gone, self._left = torch.zeros(count, dtype=torch.bool, device=device), 0
        self._streak = torch.zeros_like(self._rows)
        self._classes: Tensor | None = None
        self._said = next(iter(self.exits.values())).read(states, self.mask)

    def _own(self, arguments: Any) -> Any:
        """The arguments of those that still run, where they are given for all texts."""
        assert self.places is not None
        count = len(self.places)
        return arguments if len(self._rows) == count else selected(arguments, count, self._rows, self.shared)

    def leaving(self, streak: Tensor, rows: Tensor) -> Tensor:
        """Which texts leave, booleans (R,), by their streaks and their places in the batch."""
        return streak >= self.rule.patience

    def _judge(self, place: int) -> None:
        exit_, states = self.exits[place], first_of(self._output)
        z = exit_(exit_.read(states, self.mask))
        classes = exit_.classes(z)
        same = torch.ones_like(self._gone) if self._classes is None else classes == self._classes
        self._streak = self.rule.streak(self._streak, SCORES[self.rule.by](exit_, z, self._said), same)
        self._said, self._classes = z, classes
        leave = self.leaving(self._streak, self._rows) & ~self._gone
        if not bool(leave.any()):
            return
        self._write(place, states[leave], z[leave], self._rows[leave])
        self._gone = self._gone | leave
        self._left = int(self._gone.sum())
        if self._left < len(self._gone) <= REGROUP * self._left:
            self._regroup()

    def _write(self, place: int, states: Tensor, z: Tensor, rows: Tensor) -> None:
        """Write down what those that leave take with them."""
        assert self.places is not None
        count = len(self.places)
        if self._final is None or self.answers is None:
            self._final, self.answers = states.new_zeros(count, *states.shape[1:]), z.new_zeros(count, z.shape[1])
        self._final[rows], self.answers[rows] = self.exits[place].states(states), z
        self.places[rows] = place

    def _regroup(self) -> None:
        """Take those that have left out of what comes from here on."""
        going, count = (~self._gone).nonzero().squeeze(1), len(self._gone)
        self._output = selected(self._output, count, going)
        self._rows, self._gone, self._streak = self._rows[going], self._gone[going], self._streak[going]
        self._said, self._left = self._said[going], 0
        self.mask = None if self.mask is None else self.mask[going]
        self._classes = None if self._classes is None else self._classes[going]

    def _together(self) -> Any:
        """What the last layer returns, of all texts in their places."""
        if self._final is None:
            return self._output
        going = ~self._gone
        self._final[self._rows[going]] = first_of(self._output)[going]
        return instead(self._output, self._final)


class Scripted(Early):
    """Those texts leave that are named, by the first exit, and no others.

    Attributes:
        named: Places of these texts in the batch.
    """

    named: tuple[int, ...] = ()

    def leaving(self, streak: Tensor, rows: Tensor) -> Tensor:
        """Which texts leave, booleans (R,)."""
        return torch.isin(rows, torch.tensor(self.named, device=rows.device))


def entering(args: Sequence[Any], options: Mapping[str, Any]) -> Tensor:
    """The states that a layer is given."""
    states: Tensor = args[0] if args else options[STATES]
    return states


def first_of(output: Any) -> Tensor:
    """The states that a layer returns: its output, or the first of several."""
    states: Tensor = output[0] if isinstance(output, tuple) else output
    return states


def instead(output: Any, states: Tensor) -> Any:
    """What a layer returns, with other states."""
    return (states, *output[1:]) if isinstance(output, tuple) else states


def selected(value: Any, count: int, rows: Tensor, shared: Sequence[str] = (), name: str = "") -> Any:
    """A value with those rows of its tensors whose first dimension is `count`; tensors that are shared stay whole."""
    if isinstance(value, Tensor):
        return value.index_select(0, rows) if value.dim() and len(value) == count and name not in shared else value
    if isinstance(value, dict):
        return {key: selected(part, count, rows, shared, f"{name}.{key}") for key, part in value.items()}
    if _is_sequence(value):
        parts = (selected(part, count, rows, shared, f"{name}.{place}") for place, part in enumerate(value))
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    return value


def named(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a value, by the names that `selected` gives them."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from named(part, f"{name}.{key}")
    elif _is_sequence(value):
        for place, part in enumerate(value):
            yield from named(part, f"{name}.{place}")


def _is_sequence(value: Any) -> bool:
    """Whether a value is a list, a tuple or a named tuple, as the angles of rotary positions are."""
    return type(value) in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_make"))
