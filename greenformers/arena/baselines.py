"""Trivial baselines: what tells a class without any network. A score below the best of them has learned nothing else.

- majority: the commonest class;
- root operator (ListOps): the commonest class of each operator in front, as MIN gives small digits and MAX large ones;
- n-grams: a logistic regression on counts of runs of 1 to 4 ids, wherever they are; of a pair of passages, on the
  cosine of their counts.

Each learns from training examples, and chooses by validation examples where it has a choice.
"""

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from greenformers.arena.inputs import Inputs
from greenformers.measure.quality import correct

ORDERS = 4
"""Longest run of ids that is counted."""

BUCKETS = 2**18
"""Runs are told apart by a hash below this."""

LARGEST = 5_000
"""Most training examples of the logistic regression."""

PENALTIES = (1e-6, 1e-5, 1e-4)
"""Ridge penalties, one of which is chosen on the validation examples."""

ITERATIONS = 30
_FACTOR = 0x9E3779B1


def majority(inputs: Inputs) -> Tensor:
    """Which test examples the commonest class is right for, booleans (n,)."""
    return inputs.labels("test") == inputs.labels("train").mode().values


def first_token(inputs: Inputs) -> Tensor:
    """Which test examples the commonest class of the first token is right for, booleans (n,).

    That token comes after [CLS]; in ListOps it is the root operator.
    """
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for row, label in zip(inputs.rows["train"], inputs.labels("train").tolist(), strict=True):
        counts[int(row[1])][label] += 1
    commonest = inputs.labels("train").mode().values.item()
    told = [
        counts[int(row[1])].most_common(1)[0][0] if int(row[1]) in counts else commonest for row in inputs.rows["test"]
    ]
    return inputs.labels("test") == torch.tensor(told)


def ngrams(inputs: Inputs) -> Tensor:
    """Which test examples a logistic regression on n-grams is right for, booleans (n,)."""
    features = _features(inputs)
    labels = {split: inputs.labels(split) for split in features}
    labels["train"] = labels["train"][:: _stride(inputs)]
    models = [_regression(features["train"], labels["train"], inputs.classes, penalty) for penalty in PENALTIES]

    def right(split: str, model: tuple[Tensor, Tensor]) -> Tensor:
        return correct(features[split] @ model[0] + model[1], labels[split])

    best = max(models, key=lambda model: right("valid", model).double().mean().item())
    return right("test", best)


def baselines(inputs: Inputs, *, root: bool) -> dict[str, Tensor]:
    """Which test examples each baseline is right for, booleans (n,), by its name.

    Args:
        inputs: Sequences and their labels.
        root: Whether the first token is a baseline of its own.
    """
    every = {"majority": majority(inputs)}
    if root:
        every["root operator"] = first_token(inputs)
    return every | {"n-grams": ngrams(inputs)}


def _stride(inputs: Inputs) -> int:
    """Steps between the training examples that are used."""
    return -(-len(inputs.rows["train"]) // LARGEST)


def _features(inputs: Inputs) -> dict[str, Tensor]:
    """Features (n, F) of every split, rows of unit length; of pairs one feature, of mean 0 and deviation 1."""
    rows = {split: inputs.rows[split][:: _stride(inputs) if split == "train" else 1] for split in inputs.rows}
    second = inputs.tokenizer.sep_token_id
    if all((row == second).sum() == 2 for row in rows["train"][:1]):
        cosines = {split: torch.tensor([_cosine(row, second) for row in own]) for split, own in rows.items()}
        low, spread = cosines["train"].mean(), cosines["train"].std().clamp(min=1e-6)
        return {split: ((own - low) / spread)[:, None] for split, own in cosines.items()}
    counts = {split: [_counted(row[1:]) for row in own] for split, own in rows.items()}
    columns = torch.cat([places for places, _ in counts["train"]]).unique()
    return {split: _sparse(own, columns) for split, own in counts.items()}


def _counted(row: Tensor) -> tuple[Tensor, Tensor]:
    """Hashes of all runs of ids in a row, and the logarithms of 1 + their counts."""
    hashes = torch.cat(list(_hashes(row.long())))
    places, counts = hashes.unique(return_counts=True)
    return places, counts.float().log1p()


def _hashes(row: Tensor) -> Iterator[Tensor]:
    """The hash of the run of each length that begins at each id."""
    runs = torch.zeros_like(row)
    for order in range(min(ORDERS, len(row))):
        # The upper bits of a product depend on all bits of its factors: the newest id is one of these too.
        runs = (runs[: len(row) - order] + row[order:] + order + 1) * _FACTOR
        yield (runs >> 13) % BUCKETS


def _cosine(row: Tensor, second: int) -> float:
    """The cosine of the counts of both passages of a pair."""
    middle = int((row == second).nonzero()[0])
    (a, x), (b, y) = _counted(row[1:middle]), _counted(row[middle + 1 : -1])
    shared = torch.isin(a, b), torch.isin(b, a)
    return float((x[shared[0]] @ y[shared[1]]) / (x.norm() * y.norm()).clamp(min=1e-6))


def _sparse(counts: list[tuple[Tensor, Tensor]], columns: Tensor) -> Tensor:
    """Counts as rows of unit length (n, F), sparse, without those that no training example has."""
    ends, places, values = [0], [], []
    for hashes, own in counts:
        at = torch.searchsorted(columns, hashes).clamp(max=len(columns) - 1)
        there = columns[at] == hashes
        places.append(at[there])
        values.append(own[there] / own[there].norm().clamp(min=1e-6))
        ends.append(ends[-1] + len(places[-1]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")  # that they are in beta, and not checked unless asked for
        return torch.sparse_csr_tensor(
            torch.tensor(ends), torch.cat(places), torch.cat(values), (len(counts), len(columns)), check_invariants=True
        )


def _transposed(features: Tensor) -> Tensor:
    """The features the other way round (F, n), dense or compressed by rows as they are."""
    if features.layout != torch.sparse_csr:
        return features.T
    # What is compressed by rows is, the other way round, compressed by columns.
    ends, places, shape = features.crow_indices(), features.col_indices(), (features.shape[1], features.shape[0])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        turned = torch.sparse_csc_tensor(ends, places, features.values(), shape, check_invariants=True)
        return turned.to_sparse_csr()


def _regression(features: Tensor, labels: Tensor, classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    """Weights (F, C) and biases (C,) of a logistic regression with a ridge penalty, by L-BFGS from zero."""
    count, width = features.shape
    weight, bias = torch.zeros(width, classes, requires_grad=True), torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")
    targets = torch.nn.functional.one_hot(labels, classes).float()
    turned = _transposed(features)

    @torch.no_grad()
    def closure() -> float:
        # The gradient by hand, X^T (p - y) / n: that of torch for a sparse X takes some ten times as long.
        logits = features @ weight + bias
        error = (logits.softmax(1) - targets) / count
        weight.grad, bias.grad = turned @ error + 2 * penalty * weight, error.sum(0)
        loss = torch.nn.functional.cross_entropy(logits, labels) + penalty * weight.square().sum()
        return float(loss)

    optimizer.step(closure)
    return weight.detach(), bias.detach()
