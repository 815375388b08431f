"""Healing: a smaller network learns what the original says to unlabelled text. Hinton 2015, arXiv:1503.02531.

The loss is a weighted sum, over positions that are no padding:

- logits: T^2 KL(p || p'), p = softmax(z / T) of the original and p' of the smaller one;
- hidden: |h - h'|^2 after each layer, as a share of |h|^2 (Sun 2019, arXiv:1908.09355; Jiao 2019, arXiv:1909.10351);
- embeddings: 1 - cos of the sentence embeddings: means over positions, or as the model itself pools;
- similarities: squared difference of the cosines of all pairs of these in a batch (Tung 2019, arXiv:1907.09682).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from greenformers.data._pooling import pooling_of
from greenformers.data._texts import Task, batches, task_of
from greenformers.measure.quality import evaluating
from greenformers.train.checkpoint import newest_finite
from greenformers.train.fit import History, Schedule, fit
from greenformers.train.objective import Batch, Example, Objective, padded
from greenformers.train.stream import Stream

PARTS = ("logits", "hidden", "embeddings", "similarities")
WEIGHTS: dict[Task, dict[str, float]] = {
    "encoder": {"hidden": 1.0, "embeddings": 1.0},
    "classifier": {"logits": 1.0, "hidden": 1.0},
    "masked_lm": {"logits": 1.0, "hidden": 1.0},
    "causal_lm": {"logits": 1.0, "hidden": 1.0},
}
"""Of the parts of the loss, by what a model is for."""

VALID = 20
"""One text in so many is not learnt from; by these healing ends early, and is told how it goes."""


def heal(
    model: PreTrainedModel,
    original: PreTrainedModel,
    texts: "Distillation",
    schedule: Schedule,
    *,
    weights: Mapping[str, float] | None = None,
    temperature: float = 2.0,
    folder: Path | None = None,
    resume: bool = False,
    progress: Callable[[str, float], None] = lambda *_: None,
) -> History:
    """Train a compressed network, in place, to say what the original says.

    Args:
        model: the compressed one.
        original: what it was made from, or any network with the same outputs and tokens; not changed.
        texts: as `distillation` reads them.
        schedule: how many steps, of how many texts, at which learning rate.
        weights: of the parts of the loss; by default what suits the model.
        temperature: T of the logits.
        folder: where checkpoints go; none are made without it.
        resume: go on from the newest checkpoint of the folder.
        progress: called as work goes on.

    Returns:
        What was logged; "eval_distance" is the loss on the texts that are not learnt from.

    Raises:
        ValueError: a part of the loss that the model has no outputs for; or the loss is no longer finite.
    """
    student = Student(model, original, dict(weights or {}) or WEIGHTS[task_of(original)], temperature)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    try:
        history = fit(
            student,  # type: ignore[arg-type]  # the Trainer takes any module
            texts,
            schedule,
            label="healing",
            console=Console(quiet=True),
            folder=folder,
            resume=resume,
            callbacks=(_Progress(progress),),
        )
    except DivergedError as error:
        model.load_state_dict(before)
        good = None if folder is None else newest_finite(folder)
        last = "" if good is None else f"; the last good checkpoint is {good}"
        raise ValueError(
            f"healing diverged at a learning rate of {schedule.learning_rate:g}: {error}; try a lower one{last}"
        ) from error
    model.eval()
    return history


def distillation(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, original: PreTrainedModel, schedule: Schedule, length: int
) -> "Distillation":
    """The texts as a network reads them.

    Raises:
        ValueError: too few of them for a batch, or texts cannot heal such a model.
    """
    objective = Distillation(texts, tokenizer, length, task_of(original))
    Stream(objective, schedule.batch_size, schedule.steps or 1, schedule.seed)  # which knows how many it needs
    row = objective.rows["train"][0][None]
    try:
        with torch.no_grad():
            original(input_ids=row, attention_mask=torch.ones_like(row))
    except Exception as error:  # whatever networks raise that need more than token ids
        raise ValueError(f"{type(original).__name__} cannot be run on texts: {' '.join(str(error).split())}") from error
    return objective


def check_teacher(model: Any, original: Any, texts: "Distillation", weights: Mapping[str, float]) -> None:
    """See that a network has what its teacher is asked for, of the same form.

    Raises:
        ValueError: it has not.
    """
    row = texts.rows["train"][0][None]
    with evaluating(model), evaluating(original), torch.no_grad():
        found, wanted = (
            network(input_ids=row, attention_mask=torch.ones_like(row), output_hidden_states=True)
            for network in (model, original)
        )
    student, teacher = type(model).__name__, type(original).__name__
    parts = {"logits": [getattr(out, "logits", None) for out in (found, wanted)]}
    parts["states"] = [out.hidden_states[-1] for out in (found, wanted)]
    if any(x.shape[:2] != row.shape for x in (*found.hidden_states, *wanted.hidden_states)):
        raise ValueError(f"the states of a {student} have another length than its texts: it cannot be healed")
    for name, (one, other) in parts.items():
        if name == "logits" and not (weights or WEIGHTS[task_of(original)]).get("logits"):
            continue
        forms = ["none" if x is None else " x ".join(map(str, x.shape[1:])) for x in (one, other)]
        if one is None or other is None or one.shape != other.shape:
            raise ValueError(
                f"a {student} cannot learn from this {teacher}: of a text of {row.shape[1]} tokens the {name} are "
                f"{forms[0]} and {forms[1]}"
            )
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        loss = Student(model, original, dict(weights) or WEIGHTS[task_of(original)], 1.0)(row, torch.ones_like(row))
        torch.autograd.grad(loss["loss"], learnt, allow_unused=True)
    except RuntimeError as error:
        raise ValueError(f"a {student} cannot be trained on texts: {' '.join(str(error).split())[:200]}") from error


class _Progress(TrainerCallback):
    """Tells of every step."""

    def __init__(self, progress: Callable[[str, float], None]) -> None:
        self._progress = progress

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._progress("healing", state.global_step / state.max_steps)


class Distillation(Objective):
    """Texts, of which one in `VALID` is held out.

    Args:
        texts: without labels; those without a token are left out.
        tokenizer: of the model.
        length: longest text, in tokens; of a causal language model, that of the blocks which its texts are cut into.
        task: what the model is for.

    Raises:
        ValueError: fewer than 2 texts.
    """

    metric = "distance"
    greater_is_better = False
    splits: ClassVar[tuple[str, ...]] = ("train", "valid")

    def __init__(
        self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int, task: Task = "encoder"
    ) -> None:
        if task == "causal_lm":
            rows = [row for batch in batches(texts, tokenizer, task, length) for row in batch["input_ids"]]
        else:
            found = [tokenizer(text, truncation=True, max_length=length)["input_ids"] for text in texts]
            rows = [torch.tensor(ids) for ids in found if ids]
        if len(rows) < 2:
            raise ValueError(f"healing needs at least 2 texts, got {len(rows)}")
        held = range(0, len(rows), VALID)
        self.rows = {
            "train": [row for place, row in enumerate(rows) if place not in held],
            "valid": [rows[place] for place in held],
        }
        self.lengths = torch.tensor([len(row) for row in self.rows["train"]])
        self.filler = int(tokenizer.pad_token_id or 0)

    def size(self, split: str) -> int:
        return len(self.rows[split])

    def example(self, split: str, index: int, source: torch.Generator) -> Example:
        return {"input_ids": self.rows[split][index]}

    def collate(self, examples: list[Example]) -> Batch:
        rows = [example["input_ids"] for example in examples]
        mask = padded([torch.ones_like(row) for row in rows], 0)
        return {"input_ids": padded(rows, self.filler), "attention_mask": mask}

    def scored(self, batch: Batch) -> int:
        return len(batch["input_ids"])

    def config(self, **sizes: Any) -> Any:
        """Not available: the network is there.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a network that is healed has its configuration")

    def build(self, config: Any) -> PreTrainedModel:
        """Not available, see `config`.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a network that is healed is there")

    def evaluate(self, model: nn.Module, split: str, batch_size: int) -> dict[str, float]:
        """The loss on the texts held out."""
        order = sorted(range(self.size(split)), key=lambda index: len(self.rows[split][index]))
        device, training = next(model.parameters()).device, model.training
        model.eval()
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(order), batch_size):
                places = order[start : start + batch_size]
                batch = self.collate([{"input_ids": self.rows[split][place]} for place in places])
                loss = model(**{name: x.to(device) for name, x in batch.items()})["loss"]
                total += float(loss) * len(places)
        model.train(training)
        return {"distance": total / len(order)}


class DivergedError(ValueError):
    """A loss that is not finite."""


class Student(nn.Module):
    """A network whose loss is how far it is from another one."""

    def __init__(
        self, model: PreTrainedModel, original: PreTrainedModel, weights: Mapping[str, float], temperature: float
    ) -> None:
        super().__init__()
        self.model, self.weights, self.temperature = model, weights, temperature
        self._pool = pooling_of(model)
        self._original = (original.eval(),)  # in a tuple: not a part of this module

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> dict[str, Tensor]:
        """The loss of a batch."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "output_hidden_states": True}
        with torch.no_grad():
            wanted = self._original[0](**given)
        found = self.model(**given)
        parts = [weight * self._part(name, found, wanted, attention_mask) for name, weight in self.weights.items()]
        loss = torch.stack(parts).sum()
        if self.training and not bool(loss.isfinite()):
            raise DivergedError(f"the loss is {loss.item()}")
        return {"loss": loss}

    def _part(self, name: str, found: Any, wanted: Any, mask: Tensor) -> Tensor:
        if name == "logits":
            if getattr(wanted, "logits", None) is None:
                raise ValueError(f"{type(self._original[0]).__name__} has no logits to learn from")
            return self._logits(found.logits, wanted.logits, mask)
        if name == "hidden":
            return hidden(found.hidden_states, wanted.hidden_states, mask)
        one, other = (self._pool(out.hidden_states[-1], mask) for out in (found, wanted))
        if name == "embeddings":
            return (1 - F.cosine_similarity(one, other, dim=-1)).mean()
        one, other = F.normalize(one, dim=-1), F.normalize(other, dim=-1)
        return F.mse_loss(one @ one.T, other @ other.T)

    def _logits(self, found: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
        if wanted.ndim == 3:  # of every position
            found, wanted = found[mask.bool()], wanted[mask.bool()]
        p, q = ((x / self.temperature).log_softmax(-1) for x in (wanted, found))
        return self.temperature**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)


def hidden(found: Sequence[Tensor], wanted: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Mean over the layers, those of the embedding too, of |h - h'|^2 / |h|^2.

    Of fewer layers each is compared with the one at its share of the depth (Sanh 2019, arXiv:1910.01108).
    """
    kept, last = mask.bool(), len(found) - 1
    total = found[0].new_zeros(())
    for index, one in enumerate(found):
        other = wanted[index * (len(wanted) - 1) // last][kept]
        total = total + (one[kept] - other).square().sum() / other.square().sum()
    return total / len(found)
