"""Early exits in a network: the exits themselves beside its stack of layers, and how they take part in a call.

The modules of the network stay where they are. Exits are children of one module more, beside the stack; each layer asks
that module for its way before it computes, a call of the whole network opens the way, and of a classifier the module
that gives the logits has those of texts that have left put in its output.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.changes._exit_modules import (
    OF_CLASSIFIERS,
    OF_ENCODERS,
    ClassifierExit,
    EncoderExit,
    Exit,
    Rule,
)
from greenformers.changes._exit_passes import Early, Way
from greenformers.changes._paths import check_keys, located

NAME = "early_exits"
"""The name of the module with the exits, a sibling of the stack."""

STATES_ASKED = ("output_hidden_states", "output_attentions")
KEYS = ("after", "width", "classes", "head", "by", "threshold", "patience", "shared")


class EarlyExits(nn.Module):
    """The exits of a stack, and the way of the call that is in progress.

    Args:
        after: Numbers of the layers that exits stand after.
        width: Width d of the states.
        classes: Number of classes; None for an encoder.
        rule: When a text leaves.
        head: Path of the module whose output the logits are, in the network; None for an encoder.
        shared: Names of arguments of layers that the texts of a batch share.

    Attributes:
        way: The way that layers ask; None for all layers without exits.
        last: Number of the last layer of the stack.
    """

    def __init__(
        self, after: Sequence[int], width: int, classes: int | None, rule: Rule, head: str | None, shared: Sequence[str]
    ) -> None:
        super().__init__()
        self.exits = nn.ModuleDict(
            {str(at): EncoderExit(width) if classes is None else ClassifierExit(width, classes) for at in after}
        )
        self.width, self.classes, self.rule, self.head, self.shared = width, classes, rule, head, tuple(shared)
        self.way: Way | None = None
        self.last = -1
        self._opened = False
        self._handles: list[Any] = []

    @property
    def by_layer(self) -> dict[int, Exit]:
        """Exits by the number of the layer."""
        exits: dict[int, Any] = {int(at): module for at, module in self.exits.items()}
        return exits

    def early(self, mask: Tensor | None, kind: type[Early] = Early) -> Early:
        """A way on which texts leave."""
        return kind(self.by_layer, self.rule, self.last, mask, self.shared)

    @contextmanager
    def going(self, way: Way) -> Iterator[None]:
        """A `with` block in which calls of the network go this way."""
        self.way = way
        try:
            yield
        finally:
            self.way = None

    def connect(self, model: PreTrainedModel, stack: nn.ModuleList) -> None:
        """Have the layers ask for their way, and calls of the network open it."""
        self.last = len(stack) - 1
        for place, layer in enumerate(stack):
            layer.forward = Asking(self, place, layer.forward)
        self._handles = [
            model.register_forward_pre_hook(self._open, with_kwargs=True),
            model.register_forward_hook(self._close, always_call=True),
        ]
        if self.head is not None:
            self._handles.append(model.get_submodule(self.head).register_forward_hook(self._answer))

    def disconnect(self, stack: nn.ModuleList) -> None:
        """Undo `connect`."""
        for layer in stack:
            del layer.forward
        for handle in self._handles:
            handle.remove()

    def _open(self, model: nn.Module, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Open a way with exits for a call, unless the whole network is asked for."""
        if self.way is not None:
            return
        names = inspect.signature(model.forward).parameters if args else ()
        given = {**dict(zip(names, args, strict=False)), **options}
        mask = given.get("attention_mask")
        config: Any = model.config
        whole = any(given.get(name) or getattr(config, name, False) for name in STATES_ASKED)
        if (
            model.training or torch.is_grad_enabled() or whole or self.rule.threshold >= 1
            or (mask is not None and (not isinstance(mask, Tensor) or mask.dim() != 2))
        ):  # fmt: skip
            return
        self.way, self._opened = self.early(None if mask is None else mask.bool()), True

    def _close(self, *_: Any) -> None:
        if self._opened:
            self.way, self._opened = None, False

    def _answer(self, _: nn.Module, __: Any, logits: Tensor) -> Tensor:
        """The logits, with those of the exits for texts that have left."""
        way = self.way
        if not isinstance(way, Early) or way.answers is None or way.places is None:
            return logits
        return torch.where((way.places < way.last)[:, None], way.answers.to(logits.dtype), logits)


class Asking:
    """The `forward` of a layer of a stack with exits.

    Args:
        exits: The exits, which know the way.
        place: Number of the layer.
        layer: The layer's own `forward`.
    """

    def __init__(self, exits: EarlyExits, place: int, layer: Callable[..., Any]) -> None:
        self._exits, self._place, self.__wrapped__ = exits, place, layer

    def __call__(self, *args: Any, **options: Any) -> Any:
        way = self._exits.way
        return self.__wrapped__(*args, **options) if way is None else way(self._place, self.__wrapped__, args, options)


def put(model: PreTrainedModel, path: str, exits: EarlyExits) -> None:
    """Put exits beside the stack at a path, of the type and on the device of its weights.

    Raises:
        ValueError: There is another module of their name.
    """
    stack: Any = model.get_submodule(path)
    around = model.get_submodule(path.rpartition(".")[0])
    if hasattr(around, NAME):
        raise ValueError(f"{type(around).__name__} has {NAME} already")
    like = next(x for x in stack.parameters() if x.is_floating_point())
    exits.to(like.device, like.dtype).train(around.training)
    setattr(around, NAME, exits)
    exits.connect(model, stack)


def remove(model: nn.Module, path: str) -> None:
    """Remove the exits beside the stack at a path."""
    stack: Any = model.get_submodule(path)
    around: Any = model.get_submodule(path.rpartition(".")[0])
    getattr(around, NAME).disconnect(stack)
    delattr(around, NAME)


def exits_in(model: nn.Module) -> dict[str, EarlyExits]:
    """The exits of a network, by the path of their stack."""
    by_path = {}
    for path, part in model.named_modules():
        if isinstance(part, EarlyExits):
            around = path.rpartition(".")[0]
            stacks = [
                name for name, child in model.get_submodule(around).named_children()
                if isinstance(child, nn.ModuleList) and len(child) == part.last + 1
                and isinstance(vars(child[0]).get("forward"), Asking)
            ]  # fmt: skip
            by_path[f"{around}.{stacks[0]}" if around else stacks[0]] = part
    return by_path


def described(exits: EarlyExits) -> dict[str, Any]:
    """What there is to know of exits beside their weights, as JSON."""
    rule = exits.rule
    return {
        "after": list(exits.by_layer), "width": exits.width, "classes": exits.classes, "head": exits.head,
        "by": rule.by, "threshold": rule.threshold, "patience": rule.patience, "shared": list(exits.shared),
    }  # fmt: skip


def place_empty(model: nn.Module, path: str, described: Any) -> list[str]:
    """Put exits as described, with empty weights. The paths that the network does not have.

    Raises:
        ValueError: It is no description of exits, or they do not fit the network.
    """
    _check(path, described)
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"{type(model).__name__} is not a model of transformers: it has no early exits")
    head = described["head"]
    at = located(model, [path, *([] if head is None else [head])])
    missing = [name for name in (path, head) if name is not None and name not in at]
    if missing:
        return missing
    stack, where = model.get_submodule(at[path]), f"the exits of {path}"
    if not isinstance(stack, nn.ModuleList) or not len(stack) > max(described["after"]) + 1:
        raise ValueError(f"{path} is no stack of more than {max(described['after']) + 1} layers")
    if not any(x.shape == (described["width"],) for x in stack.parameters()):
        raise ValueError(f"{where} are {described['width']} wide, and no vector of its layers is")
    if described["classes"] not in (None, getattr(model.config, "num_labels", None)):
        raise ValueError(f"{where} tell {described['classes']} classes, and {type(model).__name__} does not")
    rule = Rule(described["by"], float(described["threshold"]), described["patience"])
    put(
        model, at[path],
        EarlyExits(
            described["after"], described["width"], described["classes"], rule, None if head is None else at[head],
            described["shared"],
        ),
    )  # fmt: skip
    return []


def _check(path: str, given: Any) -> None:
    label = f"the exits of {path}"
    check_keys(label, given, KEYS)
    after, classes, threshold = given["after"], given["classes"], given["threshold"]
    if not isinstance(after, list) or not after or after != sorted({at for at in after if type(at) is int and at >= 0}):
        raise ValueError(f"{label} must stand after layers, ascending numbers from 0 on; got {after!r}")
    for name, least in (("width", 1), ("patience", 1), ("classes", 2)):
        if not (type(given[name]) is int and given[name] >= least) and not (name == "classes" and classes is None):
            raise ValueError(f"{name} of {label} must be a whole number from {least} on, got {given[name]!r}")
    if (classes is None) != (given["head"] is None) or not isinstance(given["head"], str | None):
        raise ValueError(f"{label} need the path of the logits for classes, and only then; got {given['head']!r}")
    allowed = OF_ENCODERS if classes is None else OF_CLASSIFIERS
    if given["by"] not in allowed:
        raise ValueError(f"{label} must go by {' or '.join(allowed)}, got {given['by']!r}")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise ValueError(f"the threshold of {label} must be in [0, 1], got {threshold!r}")
    if not isinstance(given["shared"], list) or not all(isinstance(name, str) for name in given["shared"]):
        raise ValueError(f"{label} must name shared arguments in a list")
