"""A model of `transformers` as a function of tensors, and the batches on which it and its files are compared."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.checkpoint.load import line
from greenformers.model._transformers import attention_of, can_choose_attention

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
OUTPUTS = ("logits", "last_hidden_state")

Batch = tuple[Tensor, ...]
"""Inputs (B, N), int64, in the order of `Network.inputs`: token ids, mask with 1 = keep, and token types if any."""

Call = Callable[..., Tensor]
"""A function of the tensors of a `Batch`, which gives the output of the model."""


class Network(nn.Module):
    """A model of `transformers` as a function of tensors: ids and mask (B, N) to logits, or to the last hidden state.

    Args:
        model: A model in float32 on the CPU; it is put into evaluation mode.
        tokenizer: Its tokenizer, which may know no token types; without one the model decides.

    Attributes:
        inputs: Names of the inputs: ids, mask, and token types where the model tells texts apart by them.
        output: Name of the output, of `OUTPUTS`.

    Raises:
        ValueError: The model takes other inputs, gives other outputs, is not in float32, or not on the CPU.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        super().__init__()
        name, takes = type(model).__name__, inspect.signature(model.forward).parameters
        if getattr(model.config, "is_encoder_decoder", False) or not {IDS, MASK} <= set(takes):
            raise ValueError(f"only networks that take {IDS} and {MASK} alone can be exported; got a {name}")
        if model.dtype != torch.float32 or model.device.type != "cpu":
            raise ValueError(f"the model must be in float32 and on the CPU, got {model.dtype} on {model.device}")
        self.model = model.eval()
        typed = TYPES in takes and (getattr(model.config, "type_vocab_size", None) or 0) > 1
        typed = typed and (tokenizer is None or TYPES in tokenizer.model_input_names)
        self.inputs: tuple[str, ...] = (IDS, MASK, TYPES) if typed else (IDS, MASK)
        self.options = {"use_cache": False} if "use_cache" in takes else {}
        try:
            with torch.inference_mode():
                given = self._run(self.batch(1, 2))
        except Exception as error:  # whatever networks raise
            raise ValueError(f"the model cannot be run on a batch of 1 with 2 tokens: {line(error)}") from error
        self.output = next((name for name in OUTPUTS if isinstance(given.get(name), Tensor)), "")
        if not self.output:
            raise ValueError(f"{name} gives neither {' nor '.join(OUTPUTS)}")

    def _run(self, tensors: Batch) -> Any:
        given = dict(zip(self.inputs, tensors, strict=True))
        return self.model(**given, return_dict=True, **self.options)

    def forward(self, *tensors: Tensor) -> Tensor:
        """The logits or the last hidden state."""
        output: Tensor = self._run(tensors)[self.output]
        return output

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


def examples(network: Network, length: int) -> list[Batch]:
    """Padded and whole batches of about a dozen lengths up to `length`, and of several sizes.

    Raises:
        ValueError: The length is below 4.
    """
    if length < 4:
        raise ValueError(f"length must be at least 4, got {length}")
    lengths = [1, 2]
    while sum(lengths[-2:]) < length - 1:  # few lengths, of many divisors and of few
        lengths.append(sum(lengths[-2:]))
    return [
        network.batch((1, 4, 3, 5)[at % 4], tokens, ("", "right", "left")[at % 3])
        for at, tokens in enumerate([*lengths, length - 1, length])
    ]


def trace(network: Network, example: Batch) -> ExportedProgram:
    """The program of a network, for every batch and length.

    Raises:
        ValueError: The network cannot be traced, or only for one batch or length.
    """
    free = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}  # with these torch refuses to specialise to one size
    example = tuple(tensor.clone() for tensor in example)  # tensors that share their storage become one input
    try:
        with torch.no_grad():
            program = torch.export.export(network, example, dynamic_shapes=(tuple(free for _ in example),))
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
