"""Several texts per example (B, C, N), which the encoder reads one by one."""

from collections.abc import Mapping

from torch import Tensor


def texts_an_example(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> int | None:
    """Number C of texts per example; None where an example is a single text, (B, N).

    Raises:
        ValueError: Neither tokens nor vectors are given.
    """
    if input_ids is not None:
        shape = input_ids.shape
    elif inputs_embeds is not None:
        shape = inputs_embeds.shape[:-1]
    else:
        raise ValueError("input_ids or inputs_embeds must be given, got neither")
    return shape[1] if len(shape) == 3 else None


def one_by_one(given: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Flatten inputs (B, texts, ...) to (B texts, ...)."""
    return {name: None if x is None else x.flatten(0, 1) for name, x in given.items()}
