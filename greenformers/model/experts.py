"""A mixture of experts of transformers with its weights as modules, so that each can be replaced by itself.

Classes of transformers hold the weights of all experts in two parameters and may compute with them in several ways.
`unpack` puts `RoutedExperts` in their place: the same parameters in two modules, up and down, and the class's own gate
between them. `pack` undoes that where nothing was replaced.
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers._torch import without_parameters
from greenformers.lowrank.experts import ExpertsLinear, Routed
from greenformers.model._transformers import ExpertsForm, experts_form, gated, leave_as_made, normed


class RoutedExperts(nn.Module):
    """A mixture of experts: y = sum over a token's experts of p_e down_e(gate(up_e(x))).

    Args:
        packed: Experts of transformers.
        form: How they hold their weights.

    Attributes:
        own: The class's module without its weights: its gate, and its norm after the experts.
        up: The first weight, of gate and values where there is a gate.
        down: The second weight.
    """

    def __init__(self, packed: nn.Module, form: ExpertsForm) -> None:
        super().__init__()
        held: dict[str, Any] = dict(packed.named_parameters(recurse=False))
        self.form, self.own = form, _bare(packed)
        self.up: nn.Module = ExpertsLinear(held[form.up], held.get(form.up_bias), transposed=form.transposed)
        self.down: nn.Module = ExpertsLinear(held[form.down], held.get(form.down_bias), transposed=form.transposed)
        self.train(packed.training)

    def forward(
        self,
        hidden_states: Float[Tensor, "N d"],
        top_k_index: Int[Tensor, "N k"],
        top_k_weights: Float[Tensor, "N k"],
    ) -> Float[Tensor, "N d"]:
        """The tokens through the experts that were chosen for them."""
        routed = Routed.of(top_k_index, self.form.experts)
        rows: Tensor = self.up(hidden_states[routed.tokens], routed)
        rows = normed(self.own, self.down(gated(self.own, rows), routed))
        rows = rows * top_k_weights.flatten()[routed.order, None]
        # Sums in the order of the choices: `index_add` of rows would give others each time on a GPU.
        choices = rows.new_zeros(top_k_index.numel(), rows.shape[1]).index_copy(0, routed.order, rows)
        return choices.unflatten(0, top_k_index.shape).sum(1).to(hidden_states.dtype)

    def packed(self) -> nn.Module:
        """The class's own module with these weights; all of them must be dense."""
        made, names = _bare(self.own), self.form
        for part, weight, bias in ((self.up, names.up, names.up_bias), (self.down, names.down, names.down_bias)):
            made.register_parameter(weight, part.weight)  # type: ignore[arg-type]
            if part.bias is not None:
                made.register_parameter(bias, part.bias)  # type: ignore[arg-type]
        return made.train(self.training)


def _bare(module: nn.Module) -> nn.Module:
    made = without_parameters(module)
    leave_as_made(made)
    return made


def unpack(model: nn.Module) -> dict[str, nn.Module]:
    """Put `RoutedExperts` in the place of all experts of the form that is known. Those that were there, by path."""
    found = {
        path: (module, form)
        for path, module in model.named_modules(remove_duplicate=False)
        if path and (form := experts_form(module)) is not None
    }
    made = {id(module): RoutedExperts(module, form) for module, form in found.values()}
    for path, (module, _) in found.items():
        _place(model, path, made[id(module)])
    return {path: module for path, (module, _) in found.items()}


def pack(model: nn.Module, unpacked: Mapping[str, nn.Module] | None = None) -> None:
    """Put those experts back of which no weight was replaced.

    Args:
        model: In which `unpack` was at work.
        unpacked: What it gave; modules are made anew for others.
    """
    before, made = unpacked or {}, dict[int, nn.Module]()
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, RoutedExperts) and all(type(x) is ExpertsLinear for x in (module.up, module.down)):
            packed = before.get(path) or made.setdefault(id(module), module.packed())
            _place(model, path, packed)


def _place(model: nn.Module, path: str, module: nn.Module) -> None:
    stem, _, name = path.rpartition(".")
    setattr(model.get_submodule(stem), name, module)
