"""Codes of the weights of a checkpoint, one weight after the other, from disk to disk."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn

from greenformers.changes._coded import CodedWeight, codable, unit_of
from greenformers.changes._report import UnitReport
from greenformers.solve.census import census
from greenformers.solve.stream import Stored, key_of, opened
from greenformers.solve.walk import Site


class CodingStream:
    """A checkpoint on its way from disk to disk; one weight and its code are held at a time.

    Args:
        model: The network on the meta device.
        patterns: Patterns of the paths that get codes; None for all.
        alone: Function that gives the code of a weight, and the relative error.
        progress: Function that is called as work goes on.

    Attributes:
        whole: The parameters of the network before, by kind.
        sites: The weights that get codes.
        units: Reports of those that `tensors` has read so far.
    """

    def __init__(
        self, model: nn.Module, patterns: Sequence[str] | None, alone: Callable[[Site], tuple[CodedWeight, float]],
        progress: Callable[[str, float], None],
    ) -> None:  # fmt: skip
        self._alone, self._progress = alone, progress
        self.whole, self.sites = census(model), codable(model, patterns)
        self.units: list[UnitReport] = []
        self._described: dict[str, Any] = {}

    def tensors(self, stored: Mapping[str, Stored]) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the compressed checkpoint by name, one after the other.

        Raises:
            ValueError: The checkpoint lacks a weight, or holds one of another shape, or one that is not finite.
        """
        by_key = {key_of(site, stored): site for site in self.sites}
        for number, (key, (path, *_)) in enumerate(stored.items()):
            site = by_key.get(key)
            if site is None:
                with safe_open(path, framework="pt") as file:
                    tensor = file.get_tensor(key)
                yield key, tensor
            else:
                stem = key.removesuffix(".weight")
                with opened(site, path, key):
                    held = self._coded(site)
                for name, part in held.named_parameters():
                    yield f"{stem}.held.{name}", part.detach()
            self._progress("rounding", (number + 1) / len(stored))

    def _coded(self, site: Site) -> CodedWeight:
        held, lost = self._alone(site)
        self.units.append(unit_of(site, held, lost))
        self._described |= dict.fromkeys(site.paths, held.described)
        return held

    def description(self) -> dict[str, Any]:
        """The forms by path and groups of paths that share a code, once all tensors have been read."""
        return {"forms": self._described, "ties": [list(site.paths) for site in self.sites if len(site.paths) > 1]}
