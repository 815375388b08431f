"""A mixture of experts of transformers with its weights as modules, each of which can be replaced.

Classes of transformers hold the weights of all experts in two parameters. `unpack` replaces them by `RoutedExperts`:
the same parameters in two modules, up and down, with the gate of the class between them. `pack` undoes that where no
weight was replaced.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers._torch import without_parameters
from greenformers.lowrank.experts import ExpertsLinear, Routed
from greenformers.model._transformers import ExpertsForm, experts_form, gated, leave_as_made, normed


class RoutedExperts(nn.Module):
    """A mixture of experts: y = sum over a token's experts of p_e down_e(gate(up_e(x))).

    Args:
        packed: Module of experts of transformers.
        form: The form in which it holds its weights.

    Attributes:
        own: The module of transformers without its weights, for its gate and its norm after the experts.
        up: The first weight, with the rows of the gate where there is one.
        down: The second weight.
    """

    def __init__(self, packed: nn.Module, form: ExpertsForm) -> None:
        super().__init__()
        parameters: dict[str, Any] = dict(packed.named_parameters(recurse=False))
        self.form, self.own = form, _bare(packed)
        self.up: nn.Module = ExpertsLinear(
            parameters[form.up], parameters.get(form.up_bias), transposed=form.transposed
        )
        self.down: nn.Module = ExpertsLinear(
            parameters[form.down], parameters.get(form.down_bias), transposed=form.transposed
        )
        self.train(packed.training)

    def forward(
        self,
        hidden_states: Float[Tensor, "N d"],
        top_k_index: Int[Tensor, "N k"],
        top_k_weights: Float[Tensor, "N k"],
    ) -> Float[Tensor, "N d"]:
        """The weighted sum of the outputs of the experts chosen for each token."""
        routed = Routed.of(top_k_index, self.form.experts)
        rows: Tensor = self.up(hidden_states[routed.tokens], routed)
        rows = normed(self.own, self.down(gated(self.own, rows), routed))
        return routed.summed(rows, top_k_weights).to(hidden_states.dtype)

    def packed(self) -> nn.Module:
        """The module of transformers with these weights, which must be dense."""
        experts, names = _bare(self.own), self.form
        for part, weight, bias in ((self.up, names.up, names.up_bias), (self.down, names.down, names.down_bias)):
            experts.register_parameter(weight, part.weight)  # type: ignore[arg-type]
            if part.bias is not None:
                experts.register_parameter(bias, part.bias)  # type: ignore[arg-type]
        return experts.train(self.training)


def _bare(module: nn.Module) -> nn.Module:
    copy = without_parameters(module)
    leave_as_made(copy)
    return copy


def unpack(model: nn.Module) -> dict[str, nn.Module]:
    """Replace all experts of a known form by `RoutedExperts`, and return the replaced modules by path."""
    mixtures = {
        path: (module, form)
        for path, module in model.named_modules(remove_duplicate=False)
        if path and (form := experts_form(module)) is not None
    }
    routed = {id(module): RoutedExperts(module, form) for module, form in mixtures.values()}
    for path, (module, _) in mixtures.items():
        _place(model, path, routed[id(module)])
    return {path: module for path, (module, _) in mixtures.items()}


def pack(model: nn.Module, unpacked: Mapping[str, nn.Module] | None = None) -> None:
    """Put back the experts of which no weight was replaced.

    Args:
        model: A model that `unpack` has changed.
        unpacked: The result of `unpack`; modules missing in it are built again.
    """
    before, repacked = unpacked or {}, dict[int, nn.Module]()
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, RoutedExperts) and all(type(x) is ExpertsLinear for x in (module.up, module.down)):
            packed = before.get(path) or repacked.setdefault(id(module), module.packed())
            _place(model, path, packed)


@contextmanager
def as_modules(model: nn.Module) -> Iterator[None]:
    """A `with` block in which experts are unpacked; those of which no weight was replaced are packed after it."""
    unpacked = unpack(model)
    try:
        yield
    finally:
        pack(model, unpacked)


def _place(model: nn.Module, path: str, module: nn.Module) -> None:
    stem, _, name = path.rpartition(".")
    setattr(model.get_submodule(stem), name, module)
