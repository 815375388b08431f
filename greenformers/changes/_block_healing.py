"""Healing of one block of a network, or a few: they learn to give what those of the original network gave.

With x' the hidden states that the changed blocks before them give, y what the original blocks gave for those that the
original ones before them gave, and f the blocks,

    sum |f(x') - y|^2 / sum |y|^2

over the positions that are no padding. So they make up for what the blocks before them have lost, too. It is the
distillation of layers of Li 2021, BRECQ (arXiv:2102.05426, 3.2), for changes other than rounding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from greenformers.measure.quality import evaluating
from greenformers.solve.watch import call
from greenformers.train.bf16 import HALVES, widened
from greenformers.train.rates import learning_rates

VALID, CLIP, WARMUP = 10, 1.0, 0.1
"""One batch in so many is not learned from; the largest norm of a gradient; the share of the steps that is warm-up."""


def heal_block(
    block: nn.Module,
    inputs: Sequence[Mapping[str, Any]],
    outputs: Sequence[Tensor],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    learned: Sequence[nn.Parameter] | None = None,
    progress: Callable[[float], None],
) -> list[dict[str, float]]:
    """Train a block in place. Where it ends farther from the outputs than it began, its weights are as they were.

    It runs in evaluation mode, with weights in float32.

    Args:
        block: The block, or a network of a few, as changed.
        inputs: What it is called with, batch by batch.
        outputs: What the original blocks gave (B, N, d), for each batch.
        steps: Number of steps.
        batch_size: Texts of a step: batches are put together until they hold as many.
        learning_rate: Highest learning rate of AdamW.
        seed: Seed of the order of the batches.
        learned: Parameters that are learned; by default all that are floating point.
        progress: Function that is called with the share that is done.

    Returns:
        The distance, the square root of the loss, on batches that are not learned from: before the first step, after
        every tenth of the steps, and at the end.
    """
    numbers = list(range(len(inputs)))
    held = numbers[:: max(VALID, 2)] if len(numbers) > 1 else numbers
    read = [number for number in numbers if number not in held] or numbers

    def apart(number: int) -> tuple[Tensor, Tensor]:
        """The squares of the difference, and of what is to be given."""
        batch, y = widened(inputs[number]), outputs[number].float()
        out, mask = call(block, batch), batch.get("attention_mask")
        if mask is not None:
            out, y = out[mask.bool()], y[mask.bool()]
        return (out - y).square().sum(), y.square().sum()

    @torch.no_grad()
    def distance() -> float:
        pairs = [apart(number) for number in held]
        off, size = (sum(pair[place].item() for pair in pairs) for place in range(2))
        return (off / size) ** 0.5

    with evaluating(block), in_float32(block), torch.enable_grad():
        every = [parameter for parameter in block.parameters() if parameter.is_floating_point()]
        parameters = [parameter.requires_grad_() for parameter in (every if learned is None else learned)]
        before = [parameter.detach().clone() for parameter in parameters]
        optimizer = AdamW(parameters, lr=learning_rate, weight_decay=0.0)
        rates = learning_rates(optimizer, steps, WARMUP, None)
        order, log = in_turn(read, seed), [{"step": 0, "eval_distance": distance()}]
        for step in range(1, steps + 1):
            texts = 0
            while texts < batch_size:
                number = next(order)
                texts += len(outputs[number])
                off, size = apart(number)
                (off / size).backward()
            nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            optimizer.zero_grad()
            rates.step()
            progress(step / steps)
            if step % max(1, steps // 10) == 0 or step == steps:
                log.append({"step": step, "eval_distance": distance()})
        if not log[-1]["eval_distance"] <= log[0]["eval_distance"]:
            with torch.no_grad():
                for parameter, value in zip(parameters, before, strict=True):
                    parameter.copy_(value)
        for parameter in parameters:
            parameter.requires_grad_(False)
    return log


def in_turn(numbers: Sequence[int], seed: int) -> Iterator[int]:
    """These numbers again and again, each time in another order."""
    source = torch.Generator().manual_seed(seed)
    while True:
        yield from (numbers[place] for place in torch.randperm(len(numbers), generator=source).tolist())


@contextmanager
def in_float32(block: nn.Module) -> Iterator[None]:
    """A `with` block in which weights of half precision are float32: small steps would be lost in their rounding."""
    narrow = [
        (tensor, tensor.dtype) for tensor in (*block.parameters(), *block.buffers()) if tensor.dtype in HALVES
    ]  # fmt: skip
    for tensor, _ in narrow:
        tensor.data = tensor.data.float()
    try:
        yield
    finally:
        for tensor, dtype in narrow:
            tensor.data = tensor.data.to(dtype)
