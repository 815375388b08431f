"""Fine-tuning: classification of diplotypes by disease. Cahyawijaya 2021, 5.3.1."""

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
    """Classification of diplotypes, [CLS] tokens [SEP], by disease; the score is the area under the ROC curve."""

    metric = "auc"

    def __init__(self, data: Labelled, tokenizer: PreTrainedTokenizerFast, length: int) -> None:
        super().__init__(data, tokenizer, length)
        # A sequence must not be cut, as it would be that of another person. Checked here, before the training.
        longest = max(len(row) for split in ("train", "valid", "test") for row in self.rows(split))
        if longest > length:
            raise ValueError(f"length must be at least {longest}, the tokens of the longest sequence, got {length}")

    def rows(self, split: str) -> list[Tensor]:
        """All tokens of each person in a split, int32."""
        if split not in self._rows:
            texts = [text for (text,) in self.data.split(split).texts]
            ids = ids_of(self.tokenizer, texts, markers=True)
            self._rows[split] = [torch.tensor(row, dtype=torch.int32) for row in ids]
        return self._rows[split]

    def probabilities(self, model: PreTrainedModel, split: str, batch_size: int) -> tuple[Tensor, Tensor]:
        """Probability of the disease and label of each person in a split, (n,) each."""
        loader = DataLoader(Numbered(self, split), batch_size=batch_size, collate_fn=self.collate)
        device = next(model.parameters()).device
        probabilities, labels = [], []
        with evaluating(model), torch.no_grad():
            for batch in loader:
                labels.append(batch.pop("labels"))
                inputs = {name: value.to(device) for name, value in batch.items()}
                probabilities.append(model(**inputs).logits.cpu().double().softmax(-1)[:, 1])
        return torch.cat(probabilities), torch.cat(labels)

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        """Area under the ROC curve, and F1 at a probability of one half, in percent."""
        probabilities, labels = self.probabilities(model, split, batch_size)
        return scores(probabilities.numpy(), labels.numpy())


@dataclass(frozen=True, eq=False)
class Chances:
    """Probabilities that a model gives to people it was not trained on, and their labels.

    Attributes:
        valid: Probabilities of the validation people, (n,).
        valid_labels: Labels of the validation people, (n,).
        test: Probabilities of the test people, (m,).
        test_labels: Labels of the test people, (m,).
    """

    valid: NDArray[np.float64]
    valid_labels: NDArray[np.int64]
    test: NDArray[np.float64]
    test_labels: NDArray[np.int64]

    def scores(self) -> dict[str, float]:
        """Scores of the test people, F1 at the threshold that is best on the validation people."""
        return scores(self.test, self.test_labels, best_threshold(self.valid, self.valid_labels))


def scores(probabilities: NDArray[np.float64], labels: NDArray[np.int64], threshold: float = 0.5) -> dict[str, float]:
    """Area under the ROC curve of probabilities, and F1 where those above the threshold count as ill, in percent."""
    needed("scores of risk", "genome", "scikit-learn", "sklearn")
    from sklearn.metrics import f1_score, roc_auc_score

    return {
        "auc": 100 * float(roc_auc_score(labels, probabilities)),
        "f1": 100 * float(f1_score(labels, probabilities > threshold, zero_division=0.0)),
    }


def best_threshold(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The threshold of the largest F1, to be chosen on validation people and used on test people."""
    values = np.unique(probabilities)
    middles = (values[1:] + values[:-1]) / 2
    ill = np.sort(probabilities[labels == 1])
    # Numbers of people above each threshold, and of ill people among them.
    positive = len(probabilities) - np.searchsorted(np.sort(probabilities), middles, side="right")
    true_positive = len(ill) - np.searchsorted(ill, middles, side="right")
    f1 = 2 * true_positive / (positive + len(ill))
    if not len(f1) or scores(probabilities, labels)["f1"] >= 100 * f1.max():
        return 0.5
    return float(middles[f1.argmax()])
