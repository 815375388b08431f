"""How `from_pretrained` of `transformers` learns where a checkpoint differs from what its class builds.

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


class Structure(QuantizationConfigMixin):
    """The part of a model's configuration that says where it differs from the network its class builds.

    Args:
        ranks: of low-rank maps, by path.
        ties: groups of paths whose low-rank maps share one weight.
        attention: mechanisms in the place of the model's own attention, by path: name, options and shape.
        int8: paths of maps and tables of 8 bits.
        layers: which of the original's layers are left; none if all.

    Raises:
        ValueError: not of this form.
    """

    def __init__(
        self, ranks: Any = None, ties: Any = None, attention: Any = None, int8: Any = None, layers: Any = None,
        **_: Any,
    ) -> None:  # fmt: skip
        self.quant_method = NAME  # type: ignore[assignment]
        self.ranks = {} if ranks is None else ranks
        self.ties = [] if ties is None else ties
        self.attention = {} if attention is None else attention
        self.int8 = [] if int8 is None else int8
        self.layers = [] if layers is None else layers
        if not isinstance(self.ranks, dict) or not all(
            isinstance(path, str) and type(rank) is int and rank >= 1 for path, rank in self.ranks.items()
        ):
            raise ValueError("the ranks of a compressed model must be whole numbers from 1 on, by path")
        if not isinstance(self.ties, list) or not all(map(_paths, self.ties)):
            raise ValueError("the ties of a compressed model must be lists of paths")
        if not isinstance(self.attention, dict) or not all(
            isinstance(path, str)
            and isinstance(made, dict)
            and made.keys() == {"name", "options", "shape"}
            and isinstance(made["name"], str)
            and isinstance(made["options"], dict)
            and isinstance(made["shape"], dict)
            for path, made in self.attention.items()
        ):
            raise ValueError("the attention of a compressed model must be name, options and shape, by path")
        if not _paths(self.int8):
            raise ValueError("the maps of 8 bits of a compressed model must be a list of paths")

        if not isinstance(self.layers, list) or not all(type(layer) is int and layer >= 0 for layer in self.layers):
            raise ValueError("the layers of a compressed model must be a list of whole numbers from 0 on")

    @classmethod
    def read(cls, described: dict[str, Any]) -> "Structure":
        """Of a configuration that anyone may have written.

        Raises:
            ValueError: not of this form.
        """
        return cls(*(described.get(name) for name in ("ranks", "ties", "attention", "int8", "layers")))

    @property
    def empty(self) -> bool:
        """Nothing differs."""
        return not (self.ranks or self.attention or self.int8 or self.layers)


def _paths(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(path, str) for path in given)


class StructureQuantizer(HfQuantizer):
    """Changes a network on the meta device as its `Structure` says, before `from_pretrained` reads the weights."""

    requires_calibration = False

    def __init__(self, quantization_config: Structure, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        if not self.pre_quantized:
            raise ValueError("a Structure describes a compressed checkpoint; use greenformers.compress to make one")

    def _process_model_before_weight_loading(self, model: "PreTrainedModel", **kwargs: Any) -> "PreTrainedModel":
        from greenformers.checkpoint.structure import place

        config: Any = self.quantization_config
        place(model, config)
        return model

    def _process_model_after_weight_loading(self, model: "PreTrainedModel", **kwargs: Any) -> "PreTrainedModel":
        from greenformers.checkpoint.structure import settle

        # Everything a dense network can do, it can, but for the training of weights of 8 bits. The mark of a
        # quantised network would forbid .half() and training.
        model.is_quantized = False  # type: ignore[assignment]
        for module in model.modules():
            config: Any = getattr(module, "config", None)
            if hasattr(config, "_is_quantized"):
                config._is_quantized = False
        settle(model)
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
        register_quantization_config(NAME)(Structure)
        register_quantizer(NAME)(StructureQuantizer)
