"""Fine-tuning: who has the disease, from a diplotype. Thesis 5.3.1."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.data import Examples, Labelled
from greenformers.genome.masked import projected, tokenizer_of
from greenformers.genome.people import People
from greenformers.genome.settings import Finetuning
from greenformers.measure.quality import evaluating
from greenformers.train import run
from greenformers.train.classification import TextClassification
from greenformers.train.stream import Numbered
from greenformers.train.task import Task

if TYPE_CHECKING:
    from numpy.typing import NDArray


class DiseaseRisk(TextClassification):
    """Diplotypes, [CLS] tokens [SEP], and whether a person has the disease; judged by the area under the ROC curve."""

    metric = "auc"

    def __init__(self, data: Labelled, tokenizer: PreTrainedTokenizerFast, length: int) -> None:
        super().__init__(data, tokenizer, length)
        # A sequence that is cut would be another person's for all the network knows. Found now, not after the training.
        longest = max(len(row) for split in ("train", "valid", "test") for row in self.rows(split))
        if longest > length:
            raise ValueError(f"length must be at least {longest}, the tokens of the longest sequence, got {length}")

    def rows(self, split: str) -> list[Tensor]:
        """The tokens of everybody in a split, int32, all of them."""
        if split not in self._rows:
            texts = [one for (one,) in self.data.split(split).texts]
            ids = self.tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
            self._rows[split] = [torch.tensor(row, dtype=torch.int32) for row in ids]
        return self._rows[split]

    def probabilities(self, model: PreTrainedModel, split: str, batch_size: int) -> tuple[Tensor, Tensor]:
        """Of everybody in a split the probability of the disease, and the label, (n,) each."""
        loader = DataLoader(Numbered(self, split), batch_size=batch_size, collate_fn=self.collate)
        device = next(model.parameters()).device
        found, wanted = [], []
        with evaluating(model), torch.no_grad():
            for batch in loader:
                wanted.append(batch.pop("labels"))
                inputs = {name: value.to(device) for name, value in batch.items()}
                found.append(model(**inputs).logits.double().softmax(-1)[:, 1].cpu())
        return torch.cat(found), torch.cat(wanted)

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        """Area under the ROC curve, F1 at a probability of one half, in percent."""
        found, wanted = self.probabilities(model, split, batch_size)
        return scores(found.numpy(), wanted.numpy())


def scores(found: NDArray[np.float64], wanted: NDArray[np.int64], threshold: float = 0.5) -> dict[str, float]:
    """Area under the ROC curve of probabilities, and F1 where those above the threshold are called ill; in percent."""
    from sklearn.metrics import f1_score, roc_auc_score

    return {
        "auc": 100 * float(roc_auc_score(wanted, found)),
        "f1": 100 * float(f1_score(wanted, found > threshold, zero_division=0.0)),
    }


def best_threshold(found: NDArray[np.float64], wanted: NDArray[np.int64]) -> float:
    """The threshold of the largest F1; asked of the validation people, used on the test people."""
    values = np.unique(found)
    middles = (values[1:] + values[:-1]) / 2
    ranked = np.sort(found[wanted == 1])
    # Above each: how many are called ill, and how many of these are.
    called = len(found) - np.searchsorted(np.sort(found), middles, side="right")
    right = len(ranked) - np.searchsorted(ranked, middles, side="right")
    f1 = 2 * right / (called + len(ranked))
    if not len(f1) or scores(found, wanted)["f1"] >= 100 * f1.max():
        return 0.5
    return float(middles[f1.argmax()])


def prepare(settings: Finetuning) -> Task:
    """Read the people, and make the objective.

    Raises:
        ValueError: a setting out of range, or a file that is not fit for it.
        OSError: a file is missing.
    """
    people = People.load(Path(settings.sequences), settings.region)
    parts = people.splits(settings.split, settings.valid_share, settings.test_share)
    examples = {
        name: Examples([(people.text(one),) for one in some], [int(people.labels[one]) for one in some])
        for name, some in parts.items()
    }
    data = Labelled("cohort", tuple(people.phenotypes), **examples)
    tokenizer = tokenizer_of(settings)
    return Task(DiseaseRisk(data, tokenizer, settings.length), tokenizer, projected(settings))


def finetune(settings: Finetuning, out: Path, splits: int, console: Console) -> list[dict[str, float]]:
    """Train and score on several draws of train, valid and test people; goes on where it was stopped.

    Args:
        settings: of all of them; `split` and the seed are the draw's number.
        out: folder of the run folders.
        splits: how many draws.
        console: where progress is shown.

    Returns:
        Of each draw the scores of its test people.
    """
    if splits < 1:
        raise ValueError(f"splits must be at least 1, got {splits}")
    found = []
    for number in range(splits):
        one = replace(settings, split=number, seed=number)
        folder = out / f"split{number}"
        run.ensure(folder, one, console)
        found.append(tested(folder))
    return found


def tested(folder: Path) -> dict[str, float]:
    """The scores of a finished run on its test people, with the threshold that suits its validation people best."""
    settings = run.settings_of(folder, Finetuning)
    objective = replace(settings, init=str(folder), tokens=None).task().objective
    assert isinstance(objective, DiseaseRisk)
    model = run.trained(folder, Finetuning)
    valid, test = (objective.probabilities(model, split, 4 * settings.batch) for split in ("valid", "test"))
    threshold = best_threshold(valid[0].numpy(), valid[1].numpy())
    return scores(test[0].numpy(), test[1].numpy(), threshold)


def summary(found: list[dict[str, float]], name: str) -> tuple[float, float]:
    """Mean of a score over the draws, and its standard deviation; 0 of one draw."""
    values = [one[name] for one in found]
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
