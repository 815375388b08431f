"""The stages of a pipeline, one after the other in this process, are the model; what cannot be spread is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from greenformers.measure.quality import NotANumberError
from greenformers.model import (
    GreenformerConfig,
    GreenformerForCausalLM,
    GreenformerForMaskedLM,
    GreenformerForSeq2SeqLM,
    GreenformerForSequenceClassification,
)
from greenformers.train.callbacks import DivergedError
from greenformers.train.fit_pipeline import _Run
from greenformers.train.pipeline import Stage, checked
from greenformers.train.schedule import Schedule

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
    loss = torch.zeros((), dtype=torch.float64)
    items = {GreenformerForCausalLM: B * (N - 1), GreenformerForMaskedLM: B * N}.get(kind, B)
    for rows in range(0, B, 2):  # micro-batches of 2
        x = given["input_ids"][rows : rows + 2]
        mask = given["attention_mask"][rows : rows + 2] if "attention_mask" in given else None
        for part in parts[:-1]:
            x = part(x, mask)
        parts[-1].items = items
        loss = loss + parts[-1](x, mask, given["labels"][rows : rows + 2]).squeeze()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    whole = torch.autograd.grad(expected, list(model.parameters()), retain_graph=True)
    for a, b in zip(torch.autograd.grad(loss, list(model.parameters())), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_pooling_with_weights_is_of_the_last_stage() -> None:
    model = GreenformerForSequenceClassification(config(pooling="pma", num_labels=3))
    held = [{id(p) for p in Stage(model, index, 2).parameters()} for index in range(2)]
    assert held[0] | held[1] == {id(p) for p in model.parameters()}
    assert {id(p) for p in model.encoder.pool.parameters()} <= held[1]


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
        (lambda: GreenformerForMaskedLM(config()), 4, "a pipeline has at most a stage a layer, 3, got 4"),
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
    ("options", "spread", "message"),
    [
        ({"patience": 2}, (2, None, 2), "patience must be None in a pipeline, got 2"),
        ({"accumulate": 2}, (2, None, 2), "accumulate must be 1 in a pipeline, got 2"),
        ({"precision": "bf16"}, (2, None, 2), "precision must be fp32 in a pipeline, got bf16"),
        ({"optimizer": "muon"}, (2, None, 2), "optimizer must be adamw in a pipeline, got muon"),
        (
            {"low_rank_training": "spectral"},
            (2, None, 2),
            "low_rank_training must be None in a pipeline, got spectral",
        ),
        ({"shard": True}, (2, None, 2), "shard must be False in a pipeline, got True"),
        ({}, (2, None, 1), "micro_batches needs several processes: start the run with torchrun"),
        ({}, (2, 3, 4), "stages must be at least 2 and divide the processes, 4, got 3"),
        ({"batch_size": 8}, (3, None, 2), "micro_batches must divide the batch, 8, got 3"),
        ({"batch_size": 8}, (8, 2, 4), "micro_batches must divide the batch, 8, over its 2 replicas, got 8"),
        ({"batch_size": 8}, (2, None, 4), "a pipeline has at most a stage a layer, 3, got 4"),
    ],
)
def test_a_run_that_has_no_pipeline_is_refused(
    options: dict[str, Any], spread: tuple[int, int | None, int], message: str
) -> None:
    micro_batches, stages, processes = spread
    with pytest.raises(ValueError, match=r"pipeline|batch|stages") as caught:
        checked(GreenformerForMaskedLM(config()), Schedule(**options), micro_batches, stages, processes)
    assert str(caught.value) == message


def test_a_training_that_diverges_names_the_rate_that_was_asked_for() -> None:
    """It named that of the step, which at the end of a cosine is next to 0."""

    def evaluate(*_: Any) -> dict[str, float]:
        raise NotANumberError

    run = SimpleNamespace(
        control=SimpleNamespace(should_log=False, should_evaluate=True, should_save=False),
        progress=SimpleNamespace(global_step=9), schedule=Schedule(learning_rate=0.25),
        pipeline=SimpleNamespace(gather=lambda: (None, {})), objective=SimpleNamespace(evaluate=evaluate),
    )  # fmt: skip
    with pytest.raises(DivergedError, match=r"at a learning rate of 0.25: outputs are nan after 9 steps"):
        _Run._follow(run, None, 1e-9)  # type: ignore[arg-type]
