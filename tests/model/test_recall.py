"""Recall across segments: a symbol that stands before three segments of noise is asked for in the last one."""

import pytest
import torch
import torch.nn.functional as F

from greenformers.model import GreenformerConfig, GreenformerForCausalLM
from greenformers.model.memory import SegmentMemory

SYMBOLS, NOISE, SEGMENT, SEGMENTS = 8, 8, 8, 4


def recalled(memory, steps=400, attention="transformer_xl", **options):
    """The share of symbols told right after training; chance is one in eight."""
    torch.manual_seed(0)
    config = GreenformerConfig(
        vocab_size=SYMBOLS + NOISE + 1, hidden_size=32, num_attention_heads=2, intermediate_size=64,
        num_hidden_layers=2, max_position_embeddings=SEGMENT, hidden_dropout_prob=0.0, residual="pre",
        attention=attention, attention_options=options, initializer_range=0.18,
    )  # fmt: skip
    model = GreenformerForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def batch(size):
        ids = torch.randint(SYMBOLS, SYMBOLS + NOISE, (size, SEGMENT * SEGMENTS))
        ids[:, 2], ids[:, -1] = torch.randint(SYMBOLS, (size,)), SYMBOLS + NOISE
        return ids, ids[:, 2].clone()

    def told(ids):
        held, losses = SegmentMemory(memory), []
        for part in ids.split(SEGMENT, 1):
            out = model.decoder(part, memory=held)
            held = out.memory
            losses += [] if out.auxiliary_loss is None else [out.auxiliary_loss]
        return model.head(out).logits[:, -1], sum(losses)

    for _ in range(steps):
        ids, targets = batch(64)
        logits, loss = told(ids)
        (F.cross_entropy(logits, targets) + loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        ids, targets = batch(512)
        return (told(ids)[0].argmax(-1) == targets).double().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0, SEGMENT])
def test_without_memory_or_with_too_little_nothing_is_recalled(memory):
    """Two layers of memory 8 reach 16 positions beyond the segment; the symbol is 29 places back."""
    assert recalled(memory) < 0.25


@pytest.mark.slow
def test_a_memory_that_reaches_back_recalls():
    assert recalled(SEGMENT * 3) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("function", ["convolution", "mean", "max"])
def test_a_compressed_memory_recalls_with_a_third_of_the_positions(function):
    assert recalled(SEGMENT // 2, attention="compressive", ratio=4, compressed=6, function=function) > 0.95
