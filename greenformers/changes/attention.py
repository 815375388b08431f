"""Another attention in place of a pretrained model's own: any file of `greenformers.attention`, in any layers.

The projections and positions stay; see `greenformers.changes._places` for the models whose attention can be replaced.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from greenformers.changes._contract import Change, Given, option
from greenformers.changes._report import Report, UnitReport

if TYPE_CHECKING:
    from torch import nn

LONG = 256
"""Length in tokens from which on attention takes enough of the time that a faster one can save some."""


@dataclass(frozen=True)
class Attention(Change):
    """Another attention in some or all layers."""

    mechanism: str = option("sliding_window", "Name of the attention: linformer, sliding_window, ...", "--attention")
    layers: tuple[int, ...] | None = option(
        None, "Numbers of the layers, from 0: 0,2,4 or 0-2; by default all.", "--attention-layers"
    )
    select: tuple[str, ...] | None = option(
        None,
        "Patterns of paths of attention modules, such as 'encoder.*'; by default all self-attention.",
        "--attention-select",
    )
    length: int | None = option(
        None, "Longest input in tokens; where the model has fewer positions, they are continued.", "--attention-length"
    )
    options: dict[str, Any] = option({}, "An option of the attention, as name=value.", "--attention-option")

    order: ClassVar[int] = 10
    fixes_heads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        from greenformers.attention import names

        if self.mechanism not in names():
            raise ValueError(f"attention must be one of {', '.join(names())}; got {self.mechanism!r}")
        if self.length is not None and self.length < 1:
            raise ValueError(f"length must be at least 1, got {self.length}")

    @property
    def label(self) -> str:
        """Name of the mechanism."""
        return self.mechanism

    @property
    def reach(self) -> int | None:
        """The longest input in tokens, where a length is given."""
        return self.length

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """Check also that the network has places for the mechanism, and that it can be built for them."""
        import torch

        from greenformers.changes._places import planned

        super().check(model, before, given)
        with torch.random.fork_rng(devices=[]):
            self._call(planned, model, given)

    def _call(self, make: Callable[..., Any], model: "nn.Module", given: Given) -> Any:
        """The result of a function of `_places` for the options of this change."""
        from transformers import PreTrainedModel

        if not isinstance(model, PreTrainedModel):
            raise ValueError(f"{type(model).__name__} is not a model of transformers: its attention cannot be replaced")
        example = given.example if isinstance(given.example, dict) else None
        try:
            return make(
                model, self.mechanism, layers=self.layers, select=self.select, length=self.length,
                options=self.options, example=example,
            )  # fmt: skip
        except TypeError as error:
            said = str(error)
            raise ValueError(said if said.startswith(self.mechanism) else f"{self.mechanism}: {said}") from error

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Put the mechanism in place.

        Raises:
            ValueError: The model does not call the attention interface of transformers, or asks more of it than the
                mechanism can do; there is no such layer or path; an option is unknown or out of range.
        """
        import torch

        from greenformers.changes._options import as_dict
        from greenformers.changes._places import places, swap_attention

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(given.seed)
            swapped = self._call(swap_attention, model, given)
        network: Any = model
        count = len(places(network, given.example if isinstance(given.example, dict) else None))
        units = [_unit(model, path, self.mechanism) for path in swapped]
        return Report(as_dict(self), f"{len(swapped)} of {count} attentions are {self.mechanism}", units)

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """The name, options and shape of each mechanism, by path."""
        from greenformers.changes._attention_interface import swapped

        return {path: asdict(there) for path, there, _ in swapped(model)} or None

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put empty mechanisms at the paths of a description."""
        import torch

        from greenformers.changes._attention_interface import Swapped, built, put
        from greenformers.changes._paths import check_keys, located

        if not isinstance(description, dict):
            raise ValueError("the description of attention must be mechanisms by path")
        for path, there in description.items():
            check_keys(f"the attention at {path}", there, ("name", "options", "shape"))
            if not isinstance(there["name"], str) or not all(isinstance(there[k], dict) for k in ("options", "shape")):
                raise ValueError(f"the attention at {path} must have a name, and objects of options and shape")
        at = located(model, description)
        swapped = {}
        for path, where in at.items():
            try:
                swapped[where] = Swapped(**description[path])
                with torch.device(next(model.parameters()).device):
                    mechanisms = built(swapped)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}: {error}") from error
        if swapped:
            put(model, swapped, mechanisms)
        return [path for path in description if path not in at]

    @classmethod
    def ties(cls, model: "nn.Module") -> Iterable[tuple[str, str]]:
        """Parameters of mechanisms that layers share."""
        from greenformers.changes._attention_interface import shared

        return shared(model)

    @classmethod
    def settle(cls, model: "nn.Module") -> None:
        """Have the model call the attention interface."""
        from transformers import PreTrainedModel

        from greenformers.changes._attention_interface import use

        if isinstance(model, PreTrainedModel):
            use(model)

    @classmethod
    def searched(cls, model: "nn.Module", *, length: int, causal: bool, heals: bool) -> Sequence[Self]:
        """For long texts, mechanisms in which a query sees a quarter of the text at most."""
        if length < LONG:
            return []
        if causal:
            return [cls(mechanism="linear_transformer"), cls(options={"window": length // 4})]
        return [cls(mechanism="linformer", options={"k": length // 4}), cls(options={"window": length // 8})]

    def fitted(self, model: "nn.Module", length: int) -> Self:
        """The same change with `length` set, where the model has fewer positions."""
        from greenformers.model.positions import reach

        network: Any = model
        own = reach(network)
        return self if own is not None and own >= length else self.but(length=length)


def _unit(model: Any, path: str, mechanism: str) -> UnitReport:
    from greenformers.changes._attention_interface import SLOT

    size = sum(x.numel() * x.element_size() for x in model.get_submodule(f"{path}.{SLOT}").parameters())
    return UnitReport(path, mechanism, 0, size)
