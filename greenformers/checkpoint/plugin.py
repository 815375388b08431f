"""How `from_pretrained` of `transformers` learns where a checkpoint differs from what its class builds.

The one interface by which a plug-in may change a network before its weights are read is that of quantisation. This
file is read while `transformers` itself is still loading (see `greenformers._plugin`), so it imports little of it.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer

from greenformers.checkpoint.description import NAME, Description

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class DescriptionQuantizer(HfQuantizer):
    """Changes a network on the meta device as its `Description` says, before `from_pretrained` reads the weights."""

    requires_calibration = False

    def __init__(self, quantization_config: Description, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        if not self.pre_quantized:
            raise ValueError("a Description belongs to a changed checkpoint; use greenformers.compress to make one")

    def _process_model_before_weight_loading(self, model: "PreTrainedModel", **kwargs: Any) -> "PreTrainedModel":
        from greenformers.checkpoint.guard import expect
        from greenformers.checkpoint.place import MISSING, place

        config: Any = self.quantization_config
        setattr(model, MISSING, place(model, config))
        expect(model, config.guards)
        return model

    def _process_model_after_weight_loading(self, model: "PreTrainedModel", **kwargs: Any) -> "PreTrainedModel":
        from greenformers.checkpoint.guard import take_away
        from greenformers.checkpoint.place import settle
        from greenformers.model._transformers import allow_training

        # It can do all that a dense network can, except train weights that are frozen.
        allow_training(model)
        config: Any = self.quantization_config
        take_away(model, config.guards)
        settle(model)
        return model

    def get_state_dict_and_metadata(self, model: "PreTrainedModel") -> tuple[dict[str, Any], dict[str, str]]:  # noqa: D102
        from greenformers.checkpoint.guard import guarded

        described: Any = getattr(model.config, "quantization_config", None)
        return guarded(model.state_dict(), described.guards if isinstance(described, Description) else ()), {}

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


@cache
def register() -> None:
    """Register compressed networks with `from_pretrained` of `transformers`; `import greenformers` does it."""
    register_quantization_config(NAME)(Description)
    register_quantizer(NAME)(DescriptionQuantizer)
