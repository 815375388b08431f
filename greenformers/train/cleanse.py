"""Watch a classifier of texts learn, to tell which labels are wrong; the scores are in `measure.label_errors`."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from greenformers.data import Examples, Labelled
from greenformers.measure.label_errors import Observed
from greenformers.measure.quality import accuracy, evaluating
from greenformers.train.classification import TextClassification
from greenformers.train.fit import fit
from greenformers.train.run import Stopped
from greenformers.train.schedule import Schedule
from greenformers.train.stream import Numbered, generator


def classifier_from(model: PreTrainedModel, classes: int) -> PreTrainedModel:
    """A classifier with the weights of a model: the model itself where it is one, else a new head on an encoder.

    Args:
        model: Classifier or encoder of texts.
        classes: Number of classes, at least 2.

    Raises:
        ValueError: The classifier has fewer classes, there is no classifier on this kind of model, or the encoder is
            not as its class builds it.
    """
    labels = int(model.config.num_labels or 0)
    if type(model).__name__.endswith("ForSequenceClassification"):
        if labels < classes:
            raise ValueError(f"the labels must be in 0..{labels - 1}, the classes of the model, got {classes - 1}")
        return model
    config = copy.deepcopy(model.config)
    config.num_labels = classes
    try:
        new = AutoModelForSequenceClassification.from_config(config)
    except ValueError as error:
        raise ValueError(f"there is no classifier of sequences on a {type(model).__name__}") from error
    weights = getattr(model, model.base_model_prefix, model).state_dict()
    # What a head needs and an encoder may lack, such as a pooler, is new.
    own = {name: weight.shape for name, weight in new.base_model.state_dict().items()}
    there = {name: weight.shape for name, weight in weights.items()}
    differ = [name for name in {**own, **there} if own.get(name) != there.get(name) and not name.startswith("pool")]
    if differ:
        raise ValueError(f"the encoder must be as its class builds it, and {differ[0]} is not: was it compressed?")
    new.base_model.load_state_dict(weights, strict=False)
    return new


def watch(
    model: PreTrainedModel,
    data: Labelled,
    tokenizer: PreTrainedTokenizerFast,
    schedule: Schedule,
    *,
    length: int = 128,
    console: Console | None = None,
) -> tuple[Observed, Observed | None]:
    """Train a classifier in place, and observe all training examples at every evaluation of the schedule.

    What is observed takes 4 T n (d + C) bytes for n examples at T moments, and each moment a forward pass over them.

    Args:
        model: Classifier of texts, which is trained.
        data: Texts with labels; those of the validation split, if any, are taken for right.
        tokenizer: Tokenizer of the model.
        schedule: How long and how fast the model is trained; `evaluate_every` steps are between two moments.
        length: Longest text in tokens; longer texts are cut.
        console: Console that shows the progress bar; None for no bar.

    Returns:
        The training examples and those of the validation split, observed; None in place of an empty split.

    Raises:
        ValueError: The length is out of range, the batch is larger than the training set, or the model has no linear
            layer that gives its logits.
        Stopped: A signal ended the training early.
    """
    objective, rates = _Watched(data, tokenizer, length), _Rates()
    history = fit(
        model, objective, schedule, label="watching", console=console or Console(quiet=True), callbacks=(rates,)
    )
    if history.stopped is not None:
        raise Stopped(history.stopped)
    return objective.observed("train", rates.sums), objective.observed("valid", rates.sums) if len(data.valid) else None


def watch_held_out(
    model: PreTrainedModel,
    data: Labelled,
    tokenizer: PreTrainedTokenizerFast,
    schedule: Schedule,
    folds: int,
    *,
    length: int = 128,
    console: Console | None = None,
) -> Observed:
    """Observe every training example by a network that is not trained on it, but on the other folds.

    Args:
        model: Classifier of texts that every network starts as; it is left as it is.
        data: Texts with labels, of which the training split is used.
        tokenizer: Tokenizer of the model.
        schedule: How long and how fast each network is trained.
        folds: Number of networks, at least 2.
        length: Longest text in tokens; longer texts are cut.
        console: Console that shows the progress bar; None for no bar.

    Raises:
        ValueError: The number of folds is out of range; or as in `watch`.
        Stopped: A signal ended a training early.
    """
    count = len(data.train)
    if not 2 <= folds <= count:
        raise ValueError(f"folds must be in 2..{count}, got {folds}")
    parts = list(torch.randperm(count, generator=generator(schedule.seed, 4)).tensor_split(folds))
    seen: list[Observed] = []
    for part in parts:
        held = set(part.tolist())
        rest = data.train.at([place for place in range(count) if place not in held])
        split = Labelled(data.name, data.classes, rest, data.train.at(part.tolist()), Examples())
        _, held_out = watch(copy.deepcopy(model), split, tokenizer, schedule, length=length, console=console)
        seen.append(cast(Observed, held_out))
    back = torch.cat(parts).argsort()
    # A fold of one example less may have a step less in an epoch; the moments correspond all the same.
    moments = min(len(each.rates) for each in seen)
    logits, features = (
        torch.cat([getattr(each, name)[:moments] for each in seen], 1)[:, back] for name in ("logits", "features")
    )
    return Observed(logits, features, torch.tensor(data.train.labels), seen[0].rates[:moments])


class _Watched(TextClassification):
    """Classification of texts that, where it is evaluated, observes the splits; the accuracy is of the last of them."""

    def __init__(self, data: Labelled, tokenizer: PreTrainedTokenizerFast, length: int) -> None:
        super().__init__(data, tokenizer, length)
        self._splits = ["train", "valid"] if len(data.valid) else ["train"]
        self._seen: dict[str, list[tuple[Tensor, Tensor]]] = {split: [] for split in self._splits}

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        for name in self._splits:
            self._seen[name].append(self._observe(model, name, batch_size))
        last = self._splits[-1]
        return {"accuracy": accuracy(self._seen[last][-1][0], torch.tensor(self.data.split(last).labels))}

    def observed(self, split: str, rates: Sequence[float]) -> Observed:
        """What was observed of a split, with the learning rates summed up between the moments."""
        logits, features = (torch.stack(values) for values in zip(*self._seen[split], strict=True))
        return Observed(logits, features, torch.tensor(self.data.split(split).labels), torch.tensor(rates))

    def _observe(self, model: PreTrainedModel, split: str, batch_size: int) -> tuple[Tensor, Tensor]:
        """Logits (n, C) of a split, and the inputs of the layer they come from (n, d)."""
        rows = self.rows(split)
        # Texts of similar length together: less padding.
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        loader = DataLoader(Numbered(self, split, order), batch_size=batch_size, collate_fn=self.collate)
        device = next(model.parameters()).device
        logits, features = [], []
        with evaluating(model), torch.no_grad(), _last_layer(model) as calls:
            for batch in loader:
                del batch["labels"]
                out = model(**{name: value.to(device) for name, value in batch.items()})
                logits.append(out.logits.float().cpu())
                features.append(_behind(out.logits, *calls.pop()).float().cpu())
        back = torch.tensor(order).argsort()
        return torch.cat(logits)[back], torch.cat(features)[back]


class _Rates(TrainerCallback):
    """Sums of the learning rates of the steps between evaluations."""

    def __init__(self) -> None:
        self.sums: list[float] = []
        self._sum = 0.0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **context: Any
    ) -> None:
        self._sum += context["lr_scheduler"].get_last_lr()[0]

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.sums.append(self._sum)
        self._sum = 0.0


@contextmanager
def _last_layer(model: PreTrainedModel) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """In a `with` block, inputs and outputs of the linear layer that gives the logits, of every forward pass."""
    layers = [
        module for module in model.modules()
        if isinstance(module, nn.Linear) and module.out_features == model.config.num_labels
    ]  # fmt: skip
    if not layers:
        raise ValueError(
            f"a {type(model).__name__} has no linear layer that gives its {model.config.num_labels} logits"
        )
    calls: list[tuple[Tensor, Tensor]] = []

    def note(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append((given[0], output))

    handle = layers[-1].register_forward_hook(note)
    try:
        yield calls
    finally:
        handle.remove()


def _behind(logits: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
    """The inputs (B, d) of a linear layer that logits (B, C) come from.

    A decoder's layer reads all positions (B, N, d), and the outputs of one of them are the logits.
    """
    if inputs.dim() == 2:
        return inputs
    at = (outputs - logits[:, None]).abs().sum(-1).argmin(1)
    return inputs[torch.arange(len(at), device=at.device), at]
