"""What else is made of sequences with labels: gradient boosting on counts of k-mers, and a small convolutional network.

The network is of the shape that GenomicBenchmarks gives as baseline (Gresova 2023, doi:10.1186/s12863-023-01123-8): an
embedding, three convolutions with pooling between, and two linear layers.
"""

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from greenformers.genome.risk import Chances, scores

LETTERS = "ACGTN"
RATES, TREES = (0.03, 0.1), 400
EPOCHS, BATCH, PATIENCE, RATE = 40, 64, 8, 1e-3

Draw = Mapping[str, list[int]]


def boosting(counts: Any, labels: Any, draw: Draw, seed: int) -> Chances:
    """Gradient boosting of trees, as fast and as long as is best on the validation sequences."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    parts = {name: counts[rows].toarray() for name, rows in draw.items()}
    best: tuple[float, Any, Any] | None = None
    for rate in RATES:
        model = HistGradientBoostingClassifier(
            learning_rate=rate, max_iter=TREES, early_stopping=False, random_state=seed
        ).fit(parts["train"], labels[draw["train"]])
        stages = zip(*(model.staged_predict_proba(parts[name]) for name in ("valid", "test")), strict=True)
        for valid, test in stages:
            area = scores(valid[:, 1], labels[draw["valid"]])["auc"]
            if best is None or area > best[0]:
                best = area, valid[:, 1], test[:, 1]
    assert best is not None
    return Chances(best[1], labels[draw["valid"]], best[2], labels[draw["test"]])


class Convolutions(nn.Sequential):
    """The network, for sequences of `length` letters: logits (B,)."""

    def __init__(self, length: int) -> None:
        widths, kernel = (100, 16, 8, 4), 8
        blocks: list[nn.Module] = []
        for before, after in pairwise(widths):
            around = nn.ZeroPad1d(((kernel - 1) // 2, kernel // 2))
            blocks += [around, nn.Conv1d(before, after, kernel), nn.BatchNorm1d(after), nn.ReLU(), nn.MaxPool1d(2)]
        flat = widths[-1] * (length // 2 ** (len(widths) - 1))
        super().__init__(
            nn.Embedding(len(LETTERS), widths[0]), _Transposed(), *blocks, nn.Flatten(), nn.Linear(flat, 512),
            nn.ReLU(), nn.Linear(512, 1), nn.Flatten(0),
        )  # fmt: skip


class _Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mT


def convolutions(texts: Sequence[str], labels: Any, draw: Draw, seed: int) -> Chances:
    """The network, of the epoch that is best on the validation sequences."""
    torch.manual_seed(seed)
    letters = torch.tensor([[LETTERS.index(letter) for letter in text] for text in texts])
    targets = torch.tensor(np.asarray(labels), dtype=torch.float)
    model = Convolutions(letters.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    train, best, since = torch.tensor(draw["train"]), (0.0, copy.deepcopy(model)), 0
    for _ in range(EPOCHS):
        model.train()
        for rows in train[torch.randperm(len(train))].split(BATCH):
            loss = nn.functional.binary_cross_entropy_with_logits(model(letters[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        area = scores(said(model, letters[draw["valid"]]), labels[draw["valid"]])["auc"]
        since += 1
        if area > best[0]:
            best, since = (area, copy.deepcopy(model)), 0
        if since == PATIENCE:
            break
    valid, test = (said(best[1], letters[draw[name]]) for name in ("valid", "test"))
    return Chances(valid, labels[draw["valid"]], test, labels[draw["test"]])


@torch.no_grad()
def said(model: nn.Module, letters: Tensor) -> Any:
    """Chances that sequences are promoters."""
    return model.eval()(letters).sigmoid().double().numpy()
