"""A model of `transformers` as a function of tensors, and the batches on which it and its files are compared."""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase

from greenformers.changes import kinds
from greenformers.checkpoint.files import line
from greenformers.data._tasks import tells_types
from greenformers.model._transformers import attention_of, can_choose_attention
from greenformers.model.positions import first_position

IDS, MASK, TYPES, POSITIONS = "input_ids", "attention_mask", "token_type_ids", "position_ids"
LEAST = 4
"""Least length, in tokens, of the batches that a network is traced and tried with."""

OTHERS = (
    "pixel_values", "input_features", "bbox", "image_pixel_values", "image_patches", "visual_embeds", "xpath_tags_seq",
    "input_shape_ids",
)  # fmt: skip
"""Inputs of networks that read more than texts, but run without them; `input_values` ours take in place of texts."""

OUTPUTS = (("logits",), ("last_hidden_state",), ("embeddings",), ("start_logits", "end_logits"))
"""Outputs that a network may have; the last two are of question answering."""

CACHED = "past_key_values."
"""Start of the names of keys and values that a file takes: those of the tokens before."""

Batch = tuple[Tensor, ...]
"""Inputs (B, N), int64, in the order of `Network.inputs`: token ids, mask with 1 = keep, and token types if any."""

Outputs = Tensor | tuple[Tensor, ...]
"""The output of a model, or all of them where it has several, in the order of `Network.outputs`."""

Call = Callable[..., Outputs]
"""A function of the tensors of a `Batch`, which gives the outputs of the model."""


class Traceable(Protocol):
    """A network with the names of its inputs and outputs, and of the free dimensions of each input by their places."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: tuple[dict[int, str], ...]

    def __call__(self, *tensors: Tensor) -> Outputs:
        """The outputs."""

    def batch(self, size: int, length: int) -> Batch:
        """Inputs of random tokens."""


class Network(nn.Module):
    """A model of `transformers` as a function of tensors: ids and mask (B, N) to logits, or to the last hidden state.

    A model of question answering gives two outputs, the logits (B, N) of first and of last tokens of an answer.

    Args:
        model: A model on the CPU; it is put into evaluation mode.
        tokenizer: Its tokenizer, which may know no token types; without one the model decides.

    Attributes:
        inputs: Names of the inputs: ids, mask, and token types where the model tells texts apart by them.
        outputs: Names of the outputs, one of `OUTPUTS`.
        generates: Whether it is a language model.
        remembers: Whether it is one that takes a cache of keys and values.
        axes: Names of the free dimensions of each input, by their places.

    Raises:
        ValueError: The model takes other inputs, gives other outputs, is not on the CPU, or computes by
            its inputs what a program computes always.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        super().__init__()
        name, takes = type(model).__name__, inspect.signature(model.forward).parameters
        beyond = _beyond(model, takes)
        if beyond or not {IDS, MASK} <= set(takes):
            raise ValueError(f"only networks that take {IDS} and {MASK} alone can be exported; got a {name}{beyond}")
        if model.device.type != "cpu":
            raise ValueError(f"the model must be on the CPU, got one on {model.device}")
        deciding = next((change for change in kinds() if change.by_input and change.describe(model)), None)
        if deciding is not None:
            raise ValueError(
                f"inputs decide what a network with {deciding.name()} computes, so that there is no program of it; "
                "greenformers.merge takes them out"
            )
        self.model = model.eval()
        self.inputs: tuple[str, ...] = (IDS, MASK, TYPES) if tells_types(model, tokenizer) else (IDS, MASK)
        self.axes = tuple({0: "batch", 1: "length"} for _ in self.inputs)
        self.options = {"use_cache": False} if {"use_cache", "past_key_values"} & set(takes) else {}
        self.generates = model.can_generate()
        self.remembers = self.generates and "past_key_values" in takes
        self.places = self.generates and POSITIONS in takes
        self.first = first_position(model)
        try:
            with torch.inference_mode():
                given = self._run(self.batch(1, 2))
        except Exception as error:  # whatever networks raise
            raise ValueError(f"the model cannot be run on a batch of 1 with 2 tokens: {line(error)}") from error
        has = (names for names in OUTPUTS if all(isinstance(given.get(name), Tensor) for name in names))
        self.outputs: tuple[str, ...] = next(has, ())
        if not self.outputs:
            raise ValueError(f"{name} gives neither {' nor '.join(' and '.join(names) for names in OUTPUTS)}")

    def _run(self, tensors: Batch) -> Any:
        given = dict(zip(self.inputs, tensors, strict=True))
        if self.places:
            given[POSITIONS] = positions(given[MASK], given[IDS].shape[1], self.first)
        return self.model(**given, return_dict=True, **self.options)

    def forward(self, *tensors: Tensor) -> Outputs:
        """The outputs."""
        given = self._run(tensors)
        return alone([given[name] for name in self.outputs])

    def with_cache(self, ids: Tensor, mask: Tensor, cache: Cache) -> Any:
        """The outputs of new tokens (B, N) under the mask (B, P + N) of all; the cache of P tokens is lengthened."""
        more = {POSITIONS: positions(mask, ids.shape[1], self.first)} if self.places else {}
        return self.model(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, return_dict=True, **more
        )

    def batch(self, size: int, length: int, padded: str = "") -> Batch:
        """Inputs of random tokens (size, length); `padded` names the side, "left" or "right", or is empty."""
        config = self.model.config.get_text_config()
        pad = getattr(config, "pad_token_id", None) or 0
        draw = torch.Generator().manual_seed(0)
        ids = torch.randint(0, config.vocab_size - 1, (size, length), generator=draw)
        ids += (ids >= pad).long()  # padding stands for nothing else: some models find it by its id
        real = torch.linspace(length, (length + 1) // 2, size).long() if padded else torch.full((size,), length)
        mask = (torch.arange(length) < real[:, None]).long()
        mask = mask.flip(1) if padded == "left" else mask
        types = (torch.arange(length) >= length // 2).long() * mask
        return (ids.where(mask.bool(), pad), mask, types)[: len(self.inputs)]


def _beyond(model: PreTrainedModel, takes: Collection[str]) -> str:
    """What a network that takes these inputs is or reads beyond texts, as the end of a sentence; empty for nothing."""
    if model.config.is_encoder_decoder:
        return ", whose encoder and decoder would need a file each"
    if hasattr(model.config, "type_vocab_sizes"):  # of TAPAS
        return f", which reads {TYPES} of several kinds too"
    return next((f", which reads {other} too" for other in OTHERS if other in takes and IDS in takes), "")


def positions(mask: Tensor, length: int, first: int = 0) -> Tensor:
    """Positions of the last `length` tokens of a mask (B, T), counted without padding, the first token's as given."""
    return (mask.cumsum(1) - 1).clamp(min=0)[:, -length:] + first


def alone(outputs: Sequence[Tensor]) -> Outputs:
    """The one output of a model, or all of several."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def named(names: Sequence[str], outputs: Outputs) -> dict[str, Tensor]:
    """The outputs of a model by their names."""
    return dict(zip(names, (outputs,) if isinstance(outputs, Tensor) else outputs, strict=True))


def examples(network: Network, length: int) -> list[Batch]:
    """Padded and whole batches of about a dozen lengths up to `length`, and of several sizes.

    Raises:
        ValueError: The length is below `LEAST`.
    """
    if length < LEAST:
        raise ValueError(f"length must be at least {LEAST}, got {length}")
    lengths = [1, 2]
    while sum(lengths[-2:]) < length - 1:  # few lengths, of many divisors and of few
        lengths.append(sum(lengths[-2:]))
    return [
        network.batch((1, 4, 3, 5)[at % 4], tokens, ("", "right", "left")[at % 3])
        for at, tokens in enumerate([*lengths, length - 1, length])
    ]


def trace(network: Traceable, example: Batch) -> ExportedProgram:
    """The program of a network, for every batch and length.

    Args:
        network: The network, with the names of the free dimensions of its inputs.
        example: Inputs of the network.

    Raises:
        ValueError: The network cannot be traced, or only for one batch or length.
    """
    free = tuple(dict.fromkeys(axes, Dim.DYNAMIC) for axes in network.axes)  # torch refuses to specialise to one size
    module: Any = network
    example = tuple(tensor.clone() for tensor in example)  # tensors that share their storage become one input
    try:
        with torch.no_grad():
            program = torch.export.export(module, example, dynamic_shapes=(free,))
    except Exception as error:  # whatever networks raise that read their inputs' values
        raise ValueError(f"the model cannot be traced for every batch and length: {line(error)}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which names the folders of this machine
    return program


@contextmanager
def plain_attention(model: PreTrainedModel) -> Iterator[None]:
    """A `with` block in which attention is written out: runtimes know softmax(Q K^T) V, and fuse it themselves.

    Traced as `scaled_dot_product_attention` it has guards against rows without a key, which keep them from it.
    """
    chosen = attention_of(model.config)
    if chosen != "sdpa" or not can_choose_attention(model):
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(chosen)


def check_inputs(path: Path, names: Sequence[str], inputs: Sequence[str], more: str) -> None:
    """Check that a file takes the inputs of its network.

    Args:
        path: The file.
        names: Names of the inputs of the file.
        inputs: Names of the inputs of the network.
        more: Start of the names of further inputs that the file may have.

    Raises:
        ValueError: It takes others.
    """
    own = [name for name in names if not name.startswith(more)]
    if sorted(own) != sorted(inputs):
        raise ValueError(f"{path.name} takes {', '.join(own)}, and not {', '.join(inputs)}")
