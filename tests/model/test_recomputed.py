"""Training with recomputed activations: gradients as without, whichever form of checkpoint, for every mechanism."""

import pytest
import torch
from torch import Tensor

from greenformers import attention
from greenformers.model import GreenformerConfig, GreenformerForSequenceClassification


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", attention.names())
def test_gradients_are_those_of_kept_activations(name: str, reentrant: bool) -> None:
    torch.manual_seed(0)
    config = GreenformerConfig(
        vocab_size=50, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
        max_position_embeddings=16, attention=name, hidden_dropout_prob=0.1,
    )  # fmt: skip
    model = GreenformerForSequenceClassification(config).train()
    ids, mask = torch.randint(50, (2, 13)), torch.ones(2, 13, dtype=torch.long)
    mask[1, 9:] = 0

    def gradients() -> list[Tensor | None]:
        model.zero_grad()
        torch.manual_seed(1)
        model(ids, mask, labels=torch.tensor([0, 1])).loss.backward()
        return [None if x.grad is None else x.grad.clone() for x in model.parameters()]

    expected = gradients()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    torch.testing.assert_close(gradients(), expected, atol=1e-6, rtol=1e-5)
