"""Our own networks, which share products between linear layers, show calibration what each map sees."""

import pytest
import torch

from greenformers.model import GreenformerConfig, GreenformerForCausalLM, GreenformerForSequenceClassification
from greenformers.solve.budget import Budget
from greenformers.solve.factorise import factorise

SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 40}


@pytest.mark.parametrize(
    ("attention", "solver"), [("full", "loss"), ("linformer", "activation"), ("linformer", "sequential_loss")]
)
def test_every_map_of_a_layer_is_calibrated(attention: str, solver: str) -> None:
    torch.manual_seed(0)
    config = GreenformerConfig(**SMALL, attention=attention, max_position_embeddings=12, num_labels=3)
    model = GreenformerForSequenceClassification(config).eval()
    batch = {"input_ids": torch.randint(0, 40, (8, 12))}
    before = model(**batch).logits
    report = factorise(model, Budget(0.8, "uniform"), solver=solver, calibration=[batch], multiple=1)
    assert all(layer.rank for layer in report.layers if ".layers." in layer.path)
    assert sum(layer.path.endswith(("projections.q", "projections.k", "projections.v")) for layer in report.layers) == 6
    assert 0 < (model(**batch).logits - before).abs().max() < before.abs().max()


def test_a_causal_model_is_compressed_by_its_own_loss() -> None:
    torch.manual_seed(0)
    model = GreenformerForCausalLM(GreenformerConfig(**SMALL, max_position_embeddings=12)).eval()
    batches = [{"input_ids": torch.randint(0, 40, (8, 12))}]
    report = factorise(model, 0.5, solver="sequential_loss", calibration=batches, multiple=1)
    names = {".".join(layer.path.split(".")[-2:]) for layer in report.layers}
    assert names >= {"projections.q", "projections.k", "projections.v"}
    assert report.parameter_share <= 0.5
