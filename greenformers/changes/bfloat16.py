"""Weights and products in bfloat16: half of the bytes, and fast where a processor or GPU multiplies matrices in it.

The 8 bits of its exponent are those of float32, its significand has 8 in place of 24: numbers are off by 2^-9 of
themselves at most. Sums within a product are float32. Kalamkar 2019, arXiv:1905.12322.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from greenformers.changes._contract import Change, Given
from greenformers.changes._report import Report, UnitReport

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Bfloat16(Change):
    """Weights and products in bfloat16, fast in torch on processors with AMX or AVX-512 BF16, and on GPUs."""

    order: ClassVar[int] = 95
    flag: ClassVar[str | None] = "--bf16"
    freezes: ClassVar[bool] = True
    reads_weights: ClassVar[bool] = True
    in_torch: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """Its short name."""
        return "bf16"

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """Check also that it is a model of transformers with other weights, and for inputs of floats that one is there.

        Raises:
            ValueError: It is not, or its weights are in bfloat16 already.
        """
        from transformers import PreTrainedModel

        super().check(model, before, given)
        name = type(model).__name__
        if not isinstance(model, PreTrainedModel):
            raise ValueError(f"{name} is not a model of transformers, whose configuration says what its weights are in")
        if not _wider(model):
            raise ValueError(f"the weights of {name} are in bfloat16 already")
        if model.main_input_name != "input_ids" and given.batch is None:
            raise ValueError(
                f"{name} reads {model.main_input_name}, which it may not take beside weights in bfloat16: "
                f"{self.label} needs an example batch to see"
            )

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Round all weights; what a network computes itself, such as angles of positions, stays as it is.

        Raises:
            ValueError: The network does not run with them.
        """
        import torch

        from greenformers.changes._options import as_dict
        from greenformers.measure.quality import evaluating
        from greenformers.solve.watch import call

        was = [(path, tensor, tensor.data) for path, tensor in _wider(model)]
        for _, tensor, data in was:
            tensor.data = data.to(torch.bfloat16)
        if given.batch is not None:
            try:
                with evaluating(model), torch.no_grad():
                    call(model, given.batch)
            except Exception as error:  # whatever networks raise
                for _, tensor, data in was:
                    tensor.data = data
                why = " ".join(str(error).split())
                raise ValueError(f"{type(model).__name__} does not run with weights in bfloat16: {why}") from error
        units = [
            UnitReport(path, "bf16", _bytes(data), _bytes(tensor), None, _lost(data, tensor.data))
            for path, tensor, data in was
            if data.dim() > 1
        ]
        before, after = (sum(map(_bytes, kind)) for kind in zip(*((data, x) for _, x, data in was), strict=True))
        return Report(as_dict(self), f"{before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB", units)

    @classmethod
    def shows(cls, model: "nn.Module") -> bool:
        """Whether a weight is in bfloat16."""
        import torch

        return any(parameter.dtype == torch.bfloat16 for parameter in model.parameters())

    @classmethod
    def searched(cls, model: "nn.Module", *, length: int, causal: bool, heals: bool) -> "Sequence[Bfloat16]":
        """Its one setting, where this machine multiplies in it."""
        from greenformers.train.bf16 import quickest

        return [cls()] if quickest() == "bf16" else []


def _wider(model: "nn.Module") -> "list[tuple[str, Tensor]]":
    """Parameters, and buffers that are saved, which are floating point and not in bfloat16."""
    import torch

    saved = model.state_dict()
    of = [*model.named_parameters(), *((path, buffer) for path, buffer in model.named_buffers() if path in saved)]
    return [(path, x) for path, x in of if x.is_floating_point() and x.dtype != torch.bfloat16]


def _bytes(tensor: "Tensor") -> int:
    return tensor.numel() * tensor.element_size()


def _lost(before: "Tensor", after: "Tensor") -> float:
    """|W - W'| / |W|."""
    total = before.double().norm()
    return float((before.double() - after.double()).norm() / total) if total > 0 else 0.0
