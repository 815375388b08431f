"""How `from_pretrained` of `transformers` learns which maps of a checkpoint are low rank.

The one slot through which a plug-in may change a network before its weights are read is that of quantisation. This
file is read while `transformers` itself is still loading (see `greenformers._plugin`), so it imports little of it.
"""

from typing import TYPE_CHECKING, Any

from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "greenformers"


class LowRankConfig(QuantizationConfigMixin):
    """The part of a model's configuration that says which of its maps are low rank.

    Args:
        ranks: by path.
        ties: groups of paths that share one weight.

    Raises:
        ValueError: not of this form.
    """

    def __init__(self, ranks: Any = None, ties: Any = None, **_: Any) -> None:
        self.quant_method = NAME  # type: ignore[assignment]
        self.ranks = {} if ranks is None else ranks
        self.ties = [] if ties is None else ties
        if not isinstance(self.ranks, dict) or not all(
            isinstance(path, str) and type(rank) is int and rank >= 1 for path, rank in self.ranks.items()
        ):
            raise ValueError("the ranks of a compressed model must be whole numbers from 1 on, by path")
        if not isinstance(self.ties, list) or not all(
            isinstance(group, list) and all(isinstance(path, str) for path in group) for group in self.ties
        ):
            raise ValueError("the ties of a compressed model must be lists of paths")


class LowRankQuantizer(HfQuantizer):
    """Changes a network on the meta device into its low-rank form, before `from_pretrained` reads the weights."""

    requires_calibration = False

    def __init__(self, quantization_config: LowRankConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        if not self.pre_quantized:
            raise ValueError("a LowRankConfig describes a compressed checkpoint; use greenformers.compress to make one")

    def _process_model_before_weight_loading(self, model: "PreTrainedModel", **kwargs: Any) -> "PreTrainedModel":
        from greenformers.compress.checkpoint import place

        config: Any = self.quantization_config
        place(model, config.ranks, config.ties)
        return model

    def _process_model_after_weight_loading(self, model: "PreTrainedModel", **kwargs: Any) -> "PreTrainedModel":
        from greenformers.compress.checkpoint import mark

        # Its weights are plain float matrices: everything a dense network can do, it can. The mark of a quantised
        # network would forbid .half() and training.
        model.is_quantized = False  # type: ignore[assignment]
        for module in model.modules():
            config: Any = getattr(module, "config", None)
            if hasattr(config, "_is_quantized"):
                config._is_quantized = False
        mark(model)
        return model

    def is_serializable(self) -> bool:  # noqa: D102
        return True

    @property
    def is_trainable(self) -> bool:  # noqa: D102
        return True

    @property
    def is_qat_trainable(self) -> bool:  # noqa: D102
        return True

    @property
    def is_compileable(self) -> bool:  # noqa: D102
        return True


def register() -> None:
    """Make `from_pretrained` of `transformers` know compressed networks; done by `import greenformers`."""
    if NAME not in AUTO_QUANTIZER_MAPPING:
        register_quantization_config(NAME)(LowRankConfig)
        register_quantizer(NAME)(LowRankQuantizer)
