"""Fewer hidden coordinates, without training: by rotation (SliceGPT, Ashkboos 2024, arXiv:2401.15024), or by deletion.

The hidden width is found by what the network computes, see `greenformers.solve.hidden_width`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from greenformers.changes._contract import Change, Given, Need, option
from greenformers.changes._report import Report, UnitReport

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from greenformers.solve.hidden_width import HiddenWidth
    from greenformers.solve.narrow import Exchange

BY = ("rotation", "deletion")


@dataclass(frozen=True)
class Width(Change):
    """Fewer hidden coordinates in embeddings, layers and norms; heads and neurons stay as many as they are."""

    keep: float = option(0.75, "Share of the hidden width to keep, in (0, 1).", "--width")
    by: str = option(
        "rotation",
        "What goes: rotation (the directions with least energy, where norms read a stream that is only added to), or "
        "deletion (the coordinates that outputs depend on least, to be healed).",
        "--width-by",
    )
    multiple: int = option(8, "The hidden width is a multiple of this number.")
    refit: bool = option(True, "Fit linear layers to what they gave in the whole network, by least squares.")

    order: ClassVar[int] = 4
    reads_weights: ClassVar[bool] = True
    reads_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.keep < 1:
            raise ValueError(f"width to keep must be a share in (0, 1), got {self.keep}")
        if self.by not in BY:
            raise ValueError(f"width by must be of {', '.join(BY)}; got {self.by!r}")
        if self.multiple < 1:
            raise ValueError(f"multiple must be at least 1, got {self.multiple}")

    @property
    def label(self) -> str:
        """The share, as in "width 0.75" or "width 0.75 by deletion"."""
        return f"width {self.keep:g}" + ("" if self.by == "rotation" else f" by {self.by}")

    @property
    def needs(self) -> frozenset[Need]:
        """Examples to calibrate with."""
        return frozenset({"calibration"})

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """Check also that the network computes the same with all of its coordinates turned, and runs with fewer."""
        import torch
        from transformers import PreTrainedModel

        from greenformers.solve.narrow import Exchange
        from greenformers.solve.unchanged import check_runs, check_whole, outputs

        super().check(model, before, given)
        if not isinstance(model, PreTrainedModel):
            raise ValueError(
                f"{type(model).__name__} is not a model of transformers, whose configuration the width belongs to"
            )
        assert given.calibration is not None
        batch = given.calibration[0]
        width = self._width(model, batch)
        narrow = self._narrow(width.size)

        def cut(exchange: "Exchange", basis: "Tensor") -> None:
            self._cut(exchange, width, basis)

        check_whole(model, width, cut, self._any_basis(width.size), batch)
        unchanged, exchange = outputs(model, batch), Exchange(model)
        try:
            cut(exchange, torch.eye(width.size, narrow, dtype=torch.float64))
            check_runs(model, width, narrow, unchanged, batch)
        finally:
            exchange.undo()

    def _width(self, model: "nn.Module", batch: Any) -> "HiddenWidth":
        from greenformers.solve.hidden_width import hidden_width
        from greenformers.solve.rotation import norm_forms

        width = hidden_width(model, batch, shared=self.by == "deletion")
        if self.by == "rotation":
            norm_forms(model, width)
        return width

    def _narrow(self, size: int) -> int:
        """The number of hidden coordinates to keep, of `size`."""
        narrow = max(1, round(self.keep * size / self.multiple)) * self.multiple
        if narrow >= size:
            raise ValueError(
                f"width to keep must leave fewer than all {size} hidden coordinates in multiples of {self.multiple}, "
                f"got {self.keep:g}"
            )
        return narrow

    def _any_basis(self, size: int) -> "Tensor":
        """Orthonormal columns (d, d) drawn at random: a rotation, or another order."""
        import torch

        draw = torch.Generator().manual_seed(0)
        if self.by == "deletion":
            return torch.eye(size, dtype=torch.float64)[:, torch.randperm(size, generator=draw)]
        return torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64)).Q

    def _cut(self, exchange: "Exchange", width: "HiddenWidth", basis: "Tensor") -> None:
        from greenformers.solve.deletion import delete
        from greenformers.solve.rotation import rotate

        basis = basis.to(next(exchange.model.parameters()).device)
        if self.by == "rotation":
            rotate(exchange, width, basis)
        else:
            delete(exchange, width, basis.argmax(0))

    def _basis(self, model: "nn.Module", width: "HiddenWidth", given: Given) -> "tuple[Tensor, str]":
        """Orthonormal columns (d, d') of the coordinates that stay, and the share of them all in words."""
        import torch

        from greenformers.solve.deletion import information
        from greenformers.solve.loss import default
        from greenformers.solve.rotation import principal

        batches: Any = given.calibration
        narrow = self._narrow(width.size)

        def weighing(share: float) -> None:
            given.progress("weighing", share)

        if self.by == "rotation":
            vectors, energy = principal(model, width, batches, weighing)
            return vectors[:, :narrow], f"with {energy[:narrow].sum() / energy.sum():.1%} of their energy"
        loss = given.loss or default(model, batches, given.seed)
        felt = information(model, width, batches, loss, weighing)
        left = felt.argsort(descending=True)[:narrow].sort().values
        basis = torch.eye(width.size, dtype=torch.float64, device=felt.device)[:, left]
        return basis, f"with {felt[left].sum() / felt.sum():.1%} of their Fisher information; heal it next"

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Cut the hidden width of the network.

        Raises:
            ValueError: The network has no such width, or uses its hidden states in a way that is not understood.
        """
        import copy

        from greenformers.changes._narrowed import configure, mark
        from greenformers.changes._options import as_dict
        from greenformers.measure.flops import flops
        from greenformers.solve.narrow import exchanged
        from greenformers.solve.unchanged import check_runs, outputs

        network: Any = model
        batches: Any = given.calibration
        example = given.example if given.example is not None else batches[0]
        width = self._width(model, batches[0])
        narrow = self._narrow(width.size)
        basis, share = self._basis(model, width, given)
        unchanged = outputs(model, batches[0])
        sizes = {path: _bytes(model.get_submodule(path)) for path in width.dimensions}
        work = [flops(lambda: outputs(model, example)) / 2]
        dense = copy.deepcopy(model) if self.refit else None
        with exchanged(model) as exchange:
            self._cut(exchange, width, basis)
            check_runs(model, width, narrow, unchanged, batches[0])
            if dense is not None:
                self._fit(network, dense, width, basis, given)
            work.append(flops(lambda: outputs(model, example)) / 2)
        mark(model, width, narrow)
        untied = configure(network, width.size, narrow, batches[0])
        units = [
            UnitReport(path, f"{narrow} of {width.size} hidden coordinates", size, _bytes(model.get_submodule(path)))
            for path, size in sizes.items()
        ]
        summary = (
            f"{narrow:,} of {width.size:,} hidden coordinates are left, {share}; "
            f"{work[0]:,.0f} -> {work[1]:,.0f} multiply-adds"
        )
        if untied:
            summary += "; the head no longer shares the weight of the embedding"
        return Report(as_dict(self), summary, units)

    def _fit(
        self, model: "PreTrainedModel", dense: "nn.Module", width: "HiddenWidth", basis: "Tensor", given: Given
    ) -> None:
        from greenformers.solve.imitate import Imitate

        batches: Any = given.calibration
        fitting = Imitate(model, dense, batches, given.memory)
        head: Any = model.get_output_embeddings()  # as many outputs as words: too many to hold for all examples
        paths = [path for path in width.order if model.get_submodule(path) is not head]
        for number, path in enumerate(paths):
            fitting.fit(path, width.calls[path], basis if path in width.writers else None)
            given.progress("fitting", (number + 1) / len(paths))

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """What is left of each module with fewer hidden coordinates, by path."""
        from greenformers.changes._narrowed import described

        return described(model)

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put empty parameters of fewer coordinates into a network of its class."""
        from greenformers.changes._narrowed import place

        return place(model, description)


def _bytes(module: Any) -> int:
    return sum(x.numel() * x.element_size() for x in module.parameters(recurse=False))
