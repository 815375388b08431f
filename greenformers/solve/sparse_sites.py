"""The linear layers of a network that can be pruned weight by weight, and why others stay dense."""

from collections.abc import Iterable

from torch import nn
from transformers import PreTrainedModel

from greenformers.solve.walk import Select, Site, sites


def prunable(model: nn.Module, select: Select = None, *, two_of_four: bool = False) -> tuple[list[Site], list[Site]]:
    """The linear layers whose weights can be pruned, and those that stay dense.

    By default layers that make a model's outputs stay dense too, and are in neither list: the output layer of a
    language model, and all that a class puts behind its base model, such as a classifier. The factors of a low-rank
    layer are linear layers.

    Args:
        model: Any network.
        select: Which weights, see `greenformers.solve.walk.sites`; by default those of linear layers.
        two_of_four: Whether two of each four inputs are to go: their number must be a multiple of 4.

    Returns:
        The layers to prune, and those that share their weight with others or whose inputs are no multiple of 4.

    Raises:
        ValueError: There is no layer to prune, or a pattern selects nothing.
    """
    behind = _outputs(model) if select is None else set()
    linear = [
        site
        for site in sites(model, "linear" if select is None else select, factors=True)
        if site.kind == "linear" and id(site.module) not in behind
    ]
    dense = [
        site
        for site in linear
        if len({id(model.get_submodule(path)) for path in site.paths}) > 1 or (two_of_four and site.n % 4)
    ]
    paths = {site.path for site in dense}
    chosen = [site for site in linear if site.path not in paths]
    if not chosen:
        why = f": {_named(dense)} cannot be pruned so" if dense else ""
        raise ValueError(f"{type(model).__name__} has no linear layer to prune{why}")
    return chosen, dense


def _named(layers: Iterable[Site]) -> str:
    paths = [site.path for site in layers]
    return f"{paths[0]!r}, the first of {len(paths)} layers," if len(paths) > 1 else repr(paths[0])


def _outputs(model: nn.Module) -> set[int]:
    """The ids of the modules that make a model's outputs from its last hidden states."""
    if not isinstance(model, PreTrainedModel):
        return set()
    base = model.base_model
    inner = {id(module) for module in base.modules()}
    behind = {id(module) for module in model.modules() if id(module) not in inner}
    return behind | {id(model.get_output_embeddings())}
