"""Fine-tuning: who has the disease, from a diplotype. Thesis 5.3.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers._extras import needed
from greenformers.data import Labelled
from greenformers.genome.tokenizer import ids_of
from greenformers.measure.quality import evaluating
from greenformers.train.classification import TextClassification
from greenformers.train.stream import Numbered

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
            ids = ids_of(self.tokenizer, texts, markers=True)
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


@dataclass(frozen=True, eq=False)
class Chances:
    """What a model says of people it has not learnt from: how likely each has the disease, and whether it is so.

    Attributes:
        valid: probabilities of the validation people, (n,).
        valid_labels: theirs.
        test: probabilities of the test people, (m,).
        test_labels: theirs.
    """

    valid: NDArray[np.float64]
    valid_labels: NDArray[np.int64]
    test: NDArray[np.float64]
    test_labels: NDArray[np.int64]

    def scores(self) -> dict[str, float]:
        """Of the test people, with the threshold of F1 that suits the validation people best."""
        return scores(self.test, self.test_labels, best_threshold(self.valid, self.valid_labels))


def scores(found: NDArray[np.float64], wanted: NDArray[np.int64], threshold: float = 0.5) -> dict[str, float]:
    """Area under the ROC curve of probabilities, and F1 where those above the threshold are called ill; in percent."""
    needed("scores of risk", "genome", "scikit-learn", "sklearn")
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
