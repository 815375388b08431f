"""The stages of a pipeline, one after the other in this process, are the model; what cannot be spread is refused."""

from pathlib import Path

import pytest
import torch
from rich.console import Console

from greenformers.model import (
    GreenformerConfig,
    GreenformerForCausalLM,
    GreenformerForMaskedLM,
    GreenformerForSeq2SeqLM,
    GreenformerForSequenceClassification,
)
from greenformers.train.fit import Schedule
from greenformers.train.fit_pipeline import fit_pipeline
from greenformers.train.pipeline import Stage

V, N, B, LAYERS = 23, 7, 6, 3
SIZES = {
    "vocab_size": V, "hidden_size": 10, "num_attention_heads": 2, "intermediate_size": 14, "num_hidden_layers": LAYERS,
    "max_position_embeddings": N, "hidden_dropout_prob": 0.0, "pad_token_id": 0, "decoder_start_token_id": 2,
}  # fmt: skip


def config(**options) -> GreenformerConfig:
    return GreenformerConfig(**SIZES | options)


def batch(kind: type) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, V, (B, N))
    if kind is GreenformerForSequenceClassification:
        mask = torch.arange(N) < torch.arange(2, 2 + B)[:, None]
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(3, (B,))}
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("kind", [GreenformerForCausalLM, GreenformerForMaskedLM, GreenformerForSequenceClassification])
@pytest.mark.parametrize("residual", ["pre", "post"])
@pytest.mark.parametrize("stages", [2, 3])
def test_the_stages_are_the_model(kind: type, residual: str, stages: int) -> None:
    torch.manual_seed(0)
    model = kind(config(residual=residual, num_labels=3, rank=4, pooling="mean")).double()
    given = batch(kind)
    expected = model(**given).loss
    parts = [Stage(model, index, stages) for index in range(stages)]
    found = torch.zeros((), dtype=torch.float64)
    items = {GreenformerForCausalLM: B * (N - 1), GreenformerForMaskedLM: B * N}.get(kind, B)
    for rows in range(0, B, 2):  # micro-batches of 2
        x = given["input_ids"][rows : rows + 2]
        mask = given["attention_mask"][rows : rows + 2] if "attention_mask" in given else None
        for part in parts[:-1]:
            x = part(x, mask)
        parts[-1].items = items
        found = found + parts[-1](x, mask, given["labels"][rows : rows + 2]).squeeze()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    whole = torch.autograd.grad(expected, list(model.parameters()), retain_graph=True)
    for a, b in zip(torch.autograd.grad(found, list(model.parameters())), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_every_parameter_has_a_stage() -> None:
    model = GreenformerForMaskedLM(config(residual="pre"))
    held = [{id(p) for p in Stage(model, index, LAYERS).parameters()} for index in range(LAYERS)]
    assert set().union(*held) == {id(p) for p in model.parameters()}
    # Only the embedding, which is the output matrix too, is at both ends.
    assert held[0] & held[-1] == {id(model.decoder.weight)}
    assert not held[0] & held[1]


@pytest.mark.parametrize(
    ("model", "stages", "message"),
    [
        (lambda: GreenformerForMaskedLM(config()), 4, "a pipeline has at most a process a layer, 3, got 4"),
        (
            lambda: GreenformerForSeq2SeqLM(config(decoder_layers=2)), 2,
            "a pipeline needs a single stack of layers, GreenformerForSeq2SeqLM has more",
        ),
        (
            lambda: GreenformerForMaskedLM(
                config(attention="linformer", attention_options={"k": 3, "sharing": "layerwise"})
            ), 2,
            "a pipeline cannot share weights between layers, "
            "this network shares encoder.layers.1.attention.mechanism.E",
        ),
    ],
)  # fmt: skip
def test_what_has_no_stages_is_refused(model, stages: int, message: str) -> None:
    with pytest.raises(ValueError, match="pipeline") as caught:
        Stage(model(), 0, stages)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 2}, "patience must be None in a pipeline, got 2"),
        ({"accumulate": 2}, "accumulate must be 1 in a pipeline, got 2"),
        ({"precision": "bf16"}, "precision must be fp32 in a pipeline, got bf16"),
        ({"shard": True}, "shard must be False in a pipeline, got True"),
    ],
)
def test_a_schedule_that_has_no_pipeline_is_refused(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match="in a pipeline") as caught:
        fit_pipeline(
            GreenformerForMaskedLM(config()), None, Schedule(**options), 2,
            label="", console=Console(quiet=True), folder=tmp_path,
        )  # fmt: skip
    assert str(caught.value) == message
