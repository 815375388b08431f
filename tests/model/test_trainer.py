"""transformers' Trainer on our heads: smoothed labels, texts grouped by length, predictions put together."""

import pytest
import torch
import torch.nn.functional as F
from networks import VOCABULARY, config, stir
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import EvalPrediction

import greenformers.model as ours

N = 7
HEADS = {
    "MaskedLM": ({}, {"labels": (N,)}),
    "CausalLM": ({}, {"labels": (N,)}),
    "CausalLM of transformer_xl": ({"attention": "transformer_xl"}, {"labels": (N,)}),
    "SequenceClassification": ({"num_labels": 5}, {"labels": ()}),
    "TokenClassification": ({"num_labels": 5}, {"labels": (N,)}),
    "QuestionAnswering": ({}, {"start_positions": (), "end_positions": ()}),
    "PreTraining": ({}, {"labels": (N,), "next_sentence_label": ()}),
}


def texts(labels, count=6):
    draw = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(count):
        row = {"input_ids": torch.randint(1, VOCABULARY, (N,), generator=draw)}
        for name, shape in labels.items():
            row[name] = torch.randint(2 if name == "next_sentence_label" else 5, shape, generator=draw)
        rows.append(row)
    return rows


def trainer(folder, head, labels, options, **arguments):
    torch.manual_seed(0)
    kind = getattr(ours, f"GreenformerFor{head.split()[0]}")
    sizes = {"per_device_train_batch_size": 3, "per_device_eval_batch_size": 2, "max_steps": 2}
    given = TrainingArguments(folder, use_cpu=True, report_to="none", disable_tqdm=True, **sizes | arguments)
    return Trainer(stir(kind(config(**options))), given, train_dataset=texts(labels), eval_dataset=texts(labels))


@pytest.mark.parametrize("head", HEADS)
def test_predictions_of_all_batches(head, tmp_path):
    """Labels are found, whatever they are called; caches and memories are no predictions."""
    options, labels = HEADS[head]
    seen = []

    def metrics(prediction: EvalPrediction):
        seen.append(prediction)
        return {}

    own = trainer(tmp_path, head, labels, options, eval_accumulation_steps=1)
    own.compute_metrics = metrics
    assert own.evaluate()["eval_loss"] > 0
    names = list(labels)
    assert own.label_names == names
    given = seen[0].label_ids if len(names) > 1 else (seen[0].label_ids,)
    for name, label_ids in zip(names, given, strict=True):
        assert torch.stack([row[name] for row in texts(labels)]).equal(torch.from_numpy(label_ids))
    predictions = seen[0].predictions
    for each in predictions if isinstance(predictions, tuple) else (predictions,):
        assert each.shape[0] == 6


@pytest.mark.parametrize("head", ["MaskedLM", "CausalLM", "SequenceClassification", "TokenClassification"])
def test_smoothed_labels(head, tmp_path):
    """(1 - s) of the right label's surprise and s of the mean of all; a causal model's scores are of what follows."""
    options, labels = HEADS[head]
    own = trainer(tmp_path, head, labels, options, label_smoothing_factor=0.2)
    batch = own.data_collator(texts(labels))
    loss = own.compute_loss(own.model.eval(), dict(batch))
    logits, right = own.model(batch["input_ids"]).logits, batch["labels"]
    if head == "CausalLM":
        logits, right = logits[:, :-1], right[:, 1:]
    expected = F.cross_entropy(logits.flatten(0, -2), right.flatten(), label_smoothing=0.2)
    torch.testing.assert_close(loss, expected)


def test_texts_grouped_by_length(tmp_path):
    own = trainer(
        tmp_path, "SequenceClassification", {"labels": ()}, {"num_labels": 5}, train_sampling_strategy="group_by_length"
    )
    assert own.train().training_loss > 0
