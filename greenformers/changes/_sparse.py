"""The sparse layers of a network: put in place, described, opened once their numbers are read, and made plain again."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from greenformers.changes._paths import located
from greenformers.solve.sparse_linear import Sparse, StoredLinear, plain, sparse, sparse_layers
from greenformers.solve.units import put
from greenformers.solve.walk import Site, kind_of


def commit(model: nn.Module, site: Site) -> Sparse:
    """Put the sparse form of a layer, with the same parameters, in its place at all of its paths."""
    layer = site.module if isinstance(site.module, Sparse) else sparse(site.module)
    for path in site.paths:
        put(model, path, layer)
    return layer


def counts(model: nn.Module) -> dict[str, int]:
    """The number of weights that are not 0 of each sparse layer, by path."""
    return {path: layer.sizes[0] for path, layer in sparse_layers(model)}


def checked(description: Any) -> dict[str, int]:
    """The numbers of weights by path of a description from an untrusted file.

    Raises:
        ValueError: The description is not of this form.
    """
    if not isinstance(description, dict) or not description:
        raise ValueError("the description of sparse layers must be numbers of weights by path")
    for path, count in description.items():
        if not isinstance(path, str) or type(count) is not int or count < 0:
            raise ValueError(f"the number of weights of {path} must be a whole number from 0 on, got {count!r}")
    return description


def place(model: nn.Module, numbers: Mapping[str, int]) -> list[str]:
    """Put what a file holds of sparse layers at paths, empty. The paths that the network does not have.

    Raises:
        ValueError: There is no linear layer at a path, or it has fewer weights.
    """
    at = located(model, numbers)
    stored: dict[int, StoredLinear] = {}
    for path, where in at.items():
        module = model.get_submodule(where)
        if isinstance(module, StoredLinear):
            continue  # in a layer that is at several paths
        if kind_of(module) != "linear":
            raise ValueError(f"{path}: a {type(module).__name__} is no linear layer, and has no sparse form")
        try:
            put(model, where, stored.setdefault(id(module), StoredLinear(module, numbers[path])))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return [path for path in numbers if path not in at]


def settle(model: nn.Module) -> None:
    """Make sparse layers of the masks and values that were read.

    Raises:
        ValueError: A mask does not fit its values; the message names the layer.
    """
    opened: dict[int, Sparse] = {}
    for path, layer in list(sparse_layers(model)):
        if not isinstance(layer, StoredLinear) or layer.mask.is_meta:  # of which only names and shapes were read
            continue
        if id(layer) not in opened:
            try:
                opened[id(layer)] = layer.opened()
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        put(model, path, opened[id(layer)])


def revert(model: nn.Module) -> int:
    """Make every sparse layer a plain linear layer again, with its zeros. The number of layers."""
    dense: dict[int, nn.Module] = {}
    for path, layer in list(sparse_layers(model)):
        if isinstance(layer, Sparse):
            put(model, path, dense.setdefault(id(layer), plain(layer)))
    return len(dense)
