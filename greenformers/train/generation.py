"""Text out of a trained model: continuations and translations."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.measure.quality import evaluating
from greenformers.model.memory import SegmentMemory


def continuations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    *,
    new_tokens: int,
    **options: Any,
) -> list[str]:
    """Continue texts with a causal language model; the prompts are part of what is returned.

    A model that remembers reads a prompt segment by segment, and has no longest text.

    Args:
        model: a causal language model.
        tokenizer: of the model.
        prompts: at least a character each.
        new_tokens: how many are added.
        **options: of transformers' `generate`: do_sample, temperature, top_k, top_p, num_beams.

    Raises:
        ValueError: a prompt is empty, or does not fit the model with what is to follow; an option out of range.
    """
    rows = tokenizer(list(prompts), add_special_tokens=False, verbose=False)["input_ids"]
    longest, room = max(map(len, rows)), model.config.max_position_embeddings
    if not all(rows):
        raise ValueError("a prompt must have at least one character, got an empty one")
    if not model.config.memory_length:
        _check_room(longest, new_tokens, room)
    elif new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {new_tokens}")
    _check(options)
    # Padding goes to the left: what is new follows the prompt directly.
    ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    ids, mask = ids.to(model.device), mask.to(model.device)
    start = (longest - 1) // room * room  # of the last segment
    if model.config.memory_length:
        memory = _remembered(model, ids[:, :start], mask[:, :start])
        options["memory"] = memory.repeated(options.get("num_beams", 1))
    with evaluating(model):
        out = cast(Any, model).generate(
            ids[:, start:], attention_mask=mask[:, start:], max_new_tokens=new_tokens, **options
        )
    return tokenizer.batch_decode(torch.cat([ids[:, :start], out], 1), skip_special_tokens=True)


def _check_room(longest: int, new_tokens: int, room: int) -> None:
    """A prompt and what is to follow have to fit into the longest sequence."""
    if longest >= room:
        raise ValueError(f"a prompt must have at most {room - 1} tokens, got one of {longest}")
    if not 1 <= new_tokens <= room - longest:
        raise ValueError(
            f"max_new_tokens must be in 1..{room - longest} behind a prompt of {longest} tokens, got {new_tokens}"
        )


def _remembered(model: PreTrainedModel, ids: Tensor, mask: Tensor) -> SegmentMemory:
    """The memory of a text in whole segments."""
    memory, room = SegmentMemory(model.config.memory_length), model.config.max_position_embeddings
    with evaluating(model), torch.no_grad():
        for at in range(0, ids.shape[1], room):
            here = slice(at, at + room)
            memory = model(ids[:, here], attention_mask=mask[:, here], memory=memory, logits_to_keep=1).memory
    return memory


def translations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    sources: Sequence[str],
    *,
    batch_size: int = 64,
    **options: Any,
) -> Iterator[str]:
    """Write the targets of source texts with an encoder-decoder, in their order.

    Args:
        model: an encoder-decoder.
        tokenizer: of the model.
        sources: texts; what is longer than the model's longest sequence is cut.
        batch_size: texts at a time.
        **options: of transformers' `generate`: num_beams, max_new_tokens, do_sample.

    Raises:
        ValueError: max_new_tokens or num_beams out of range.
    """
    room = model.config.max_position_embeddings
    options = {"max_new_tokens": room - 1} | options
    if not 1 <= options["max_new_tokens"] < room:
        raise ValueError(f"max_new_tokens must be in 1..{room - 1}, got {options['max_new_tokens']}")
    _check(options)
    for start in range(0, len(sources), batch_size):
        inputs = tokenizer(
            list(sources[start : start + batch_size]),
            truncation=True,
            max_length=room,
            padding=True,
            return_tensors="pt",
        ).to(model.device)
        with evaluating(model):
            out = cast(Any, model).generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], **options)
        yield from tokenizer.batch_decode(out, skip_special_tokens=True)


def _check(options: dict[str, Any]) -> None:
    beams, share = options.get("num_beams", 1), options.get("top_p", 1.0)
    if beams < 1:
        raise ValueError(f"beams must be at least 1, got {beams}")
    if not options.get("temperature", 1.0) > 0:
        raise ValueError(f"temperature must be above 0, got {options['temperature']}")
    if not 0 < share <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {share}")
    if options.get("top_k", 0) < 0:
        raise ValueError(f"top_k must be at least 0, got {options['top_k']}")
