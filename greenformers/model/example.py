"""An example batch of a network, made from its configuration alone: to run it once, and to measure its cost."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

BYTES = 256

LEFT_OUT = ("_token_id", "_token_index")
"""Endings of the names of special tokens in configurations, of an image or the end of a text."""


def example_of(model: PreTrainedModel, *, batch: int = 2, length: int = 16, seed: int = 0) -> dict[str, Tensor]:
    """Random tokens, images or recordings as inputs of a network; always the same for the same arguments.

    Args:
        model: A model of transformers.
        batch: Number B of examples.
        length: Number N of tokens of a text; sizes of images and recordings come from the configuration.
        seed: Seed of the random inputs.

    Raises:
        ValueError: The form of an input cannot be read from the configuration.
    """
    example = _Example(model, batch, length, torch.Generator().manual_seed(seed))
    return {name: x.to(model.device) for name, x in example.inputs().items()}


class _Example:
    def __init__(self, model: PreTrainedModel, batch: int, length: int, draw: torch.Generator) -> None:
        self.model, self.batch, self.length, self.draw = model, batch, length, draw
        self.taken = inspect.signature(model.forward).parameters
        self.main = model.main_input_name
        self.pairs = bool(getattr(model.config, "is_encoder_decoder", False))

    def inputs(self) -> dict[str, Tensor]:
        inputs = {self.main: self._input(self.main)}
        both = "pixel_values" in self.taken and hasattr(model_config(self.model), "vision_config") and self._both
        if both:
            inputs["pixel_values"] = self._input("pixel_values")
        if self.pairs and "decoder_input_ids" in self.taken:
            inputs["decoder_input_ids"] = self._tokens(
                max(1, self.length - 3), decoder=True
            )  # of another length than the encoder's, so that cross-attention differs
        if "bbox" in self.taken:
            inputs["bbox"] = torch.zeros(self.batch, self.length, 4, dtype=torch.long)
        if self.main == "input_ids" and "labels" not in self.main:
            inputs["input_ids"][:, -1] = self._last(inputs["input_ids"])
        return inputs

    @property
    def _both(self) -> bool:
        """Whether the network always takes text and image; networks with optional images have an image token."""
        return not any(name.startswith("image_token") for name in model_config(self.model).to_dict())

    def _last(self, ids: Tensor) -> Tensor:
        """The last token: the end of the text for networks that pool there (CLIP, classifying encoder-decoders)."""
        text = model_config(self.model).get_text_config()
        end = getattr(text, "eos_token_id", None)
        classifies = self.pairs and type(self.model).__name__.endswith("ForSequenceClassification")
        takes = classifies or hasattr(model_config(self.model), "vision_config")
        if takes and isinstance(end, int) and 0 <= end < text.vocab_size:
            return torch.full_like(ids[:, -1], end)
        return ids[:, -1]

    def _input(self, name: str) -> Tensor:
        if name in ("input_ids", "inputs"):
            return self._tokens(self.length)
        if name == "pixel_values":
            return self._pixels()
        if name in ("input_features", "input_values"):
            return self._sound(name)
        raise ValueError(
            f"{type(self.model).__name__} reads {name}, of which the configuration gives no example: give one"
        )

    def _tokens(self, length: int, decoder: bool = False) -> Tensor:
        text = model_config(self.model).get_text_config(decoder=True if decoder else None)
        count = getattr(text, "vocab_size", None) or BYTES  # networks without a vocabulary read characters
        special = {value for config in configs(model_config(self.model)) for value in _meant(config)}
        plain = [token for token in range(min(count, 1000)) if token not in special] or list(range(count))
        places = torch.randint(len(plain), (self.batch, length), generator=self.draw)
        return torch.tensor(plain)[places]

    def _pixels(self) -> Tensor:
        sizes = (_option(config, "image_size") for config in configs(model_config(self.model)))
        size: Any = next((size for size in sizes if size), 64)
        height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        channels = (_option(config, "num_channels") for config in configs(model_config(self.model)))
        count = next((int(count) for count in channels if count), 3)
        frames = (_option(config, "num_frames") for config in configs(model_config(self.model)))
        leading = [int(number) for number in frames if number][:1]
        return torch.randn(self.batch, *leading, count, height, width, generator=self.draw)

    def _sound(self, name: str) -> Tensor:
        config = model_config(self.model)
        bins = _option(config, "num_mel_bins")
        if bins and (frames := _option(config, "max_source_positions")) and name == "input_features":
            if _option(config, "input_feat_per_channel"):  # speech to text: frames come first
                return torch.randn(self.batch, 4 * self.length, config.input_feat_per_channel, generator=self.draw)
            return torch.randn(self.batch, bins, 2 * frames, generator=self.draw)
        if bins and (longest := _option(config, "max_length")):  # spectrograms as images
            return torch.randn(self.batch, longest, bins, generator=self.draw)
        for width in ("feature_projection_input_dim", "input_feat_per_channel", "input_features"):
            if number := _option(config, width):
                return torch.randn(self.batch, 4 * self.length, number, generator=self.draw)
        strides = _option(config, "conv_stride") or (320,)
        kernels = _option(config, "conv_kernel") or (400,)
        samples = self.length
        for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
            samples = samples * stride + kernel
        return torch.randn(self.batch, samples, generator=self.draw)


def model_config(model: PreTrainedModel) -> Any:
    """The configuration of a model, whose attributes are its own."""
    return model.config


def configs(config: PreTrainedConfig) -> Iterator[Any]:
    """Yield a configuration and all configurations within it."""
    yield config
    for value in vars(config).values():
        if isinstance(value, PreTrainedConfig):
            yield from configs(value)


def _option(config: Any, name: str) -> Any:
    return getattr(config, name, None)


def _meant(config: PreTrainedConfig) -> Iterator[int]:
    for name, value in vars(config).items():
        if name.endswith(LEFT_OUT):
            yield from (
                [value] if isinstance(value, int) else [token for token in value or () if isinstance(token, int)]
            )
