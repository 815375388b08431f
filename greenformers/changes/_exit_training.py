"""Exits learn what the whole network says: by distillation on unlabelled texts, all in one pass a batch.

The loss of an exit after the n-th of the layers is weighed by n / sum n (Zhou 2020, arXiv:2006.04152, eq. 6):

    of a classifier   KL(p_whole || p_exit)
    of an encoder     1 - cos(e_exit, e_whole), of the embeddings that come of their states; plus
                      ||g(h) - h_whole||^2 / ||h_whole||^2, of the states of all tokens

What distance an exit of an encoder foretells is fitted afterwards, to the logarithms of the distances of texts that it
has learnt from: u and v by least squares, with a ridge, the larger the fewer texts there are.

The layers themselves stay, or learn too: then the outputs of the whole network have to stay what they were, as the last
of the exits.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from greenformers.changes._distillation import Distillation
from greenformers.changes._exit_modules import SCORES, EncoderExit, Rule
from greenformers.changes._exit_passes import Seen, Tail
from greenformers.changes._exit_threshold import left_by
from greenformers.changes._exits import EarlyExits
from greenformers.changes._healing import distances
from greenformers.changes._while_learning import draws_apart, in_full
from greenformers.data._pooling import pooling_of
from greenformers.data._rows import Batches, Rows
from greenformers.measure.quality import evaluating
from greenformers.train.fit import fit
from greenformers.train.objective import Batch
from greenformers.train.run import Stopped
from greenformers.train.schedule import Schedule

HELD, MOST_HELD = 4, 2000
"""One text in so many chooses the threshold and is not learnt from, and no more than so many."""

FITTED = 1000
"""Most texts to which the distance foretold is fitted."""

LEAST_DISTANCE = 1e-5
"""Distances below this are foretold as this."""

SIZE = 32
"""Texts that are measured at once."""


@dataclass(frozen=True)
class Said:
    """What a network says to a batch.

    Attributes:
        seen: The states after its layers.
        logits: Logits of a classifier (B, C).
        states: The encoder's output (B, N, d).
        vectors: Embeddings (B, m).
    """

    seen: Seen
    logits: Tensor | None = None
    states: Tensor | None = None
    vectors: Tensor | None = None

    def lost(self, whole: "Said") -> Tensor:
        """The loss of each text, (B,): whether another class is told, or the distance of embeddings, at most 1."""
        if self.logits is not None and whole.logits is not None:
            return (self.logits.argmax(-1) != whole.logits.argmax(-1)).float()
        return (1 - self.cosines(whole)).clamp(0, 1)

    def cosines(self, whole: "Said") -> Tensor:
        """Cosines (B,) of the embeddings."""
        assert self.vectors is not None
        assert whole.vectors is not None
        return F.cosine_similarity(self.vectors.float(), whole.vectors.float(), dim=-1)


def parted(rows: Rows) -> tuple[Rows, Rows]:
    """Texts to learn from, and those by which the threshold is chosen."""
    every = max(HELD, -(-len(rows) // MOST_HELD))
    held = range(0, len(rows), every)
    return rows.at([at for at in range(len(rows)) if at % every]), rows.at(list(held))


def mask_of(batch: Mapping[str, Tensor], states: Tensor) -> Tensor:
    """The positions of states (B, N, d) that are no padding, (B, N)."""
    mask = batch.get("attention_mask")
    return states.new_ones(states.shape[:2], dtype=torch.bool) if mask is None else mask.bool()


class Learner(nn.Module):
    """A network with exits, and the distance of what they say from what the whole network says as loss.

    Args:
        model: The network.
        exits: Its exits.
        whole: The network as it was, where the layers learn too; else None.
    """

    accepts_loss_kwargs = False  # the Trainer gives no number of labels, and does not divide by it

    def __init__(self, model: PreTrainedModel, exits: EarlyExits, whole: PreTrainedModel | None = None) -> None:
        super().__init__()
        self.model = model
        self._exits, self._whole = (exits,), (whole,)  # in tuples: not a part of this module beside the network
        self._pool = pooling_of(model)

    @property
    def exits(self) -> EarlyExits:
        """The exits."""
        return self._exits[0]

    def said(self, network: PreTrainedModel, exits: EarlyExits | None, batch: Mapping[str, Tensor]) -> Said:
        """What a network says after all its layers; its states are noted where exits of it are given."""
        seen = Seen()
        with nullcontext() if exits is None else exits.going(seen):
            out = (network if self.exits.classes is not None else network.base_model)(**batch)
        if self.exits.classes is not None:
            return Said(seen, logits=out.logits)
        return Said(seen, states=out.last_hidden_state, vectors=self._vectors(out.last_hidden_state, batch))

    def _vectors(self, states: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        return self._pool(states, mask_of(batch, states))

    def tail(self, states: Tensor, like: Said, batch: Mapping[str, Tensor]) -> Tensor:
        """The encoder's output (B, N, d) of states (B, N, d) with which texts leave."""
        with self.exits.going(Tail(states, like.seen.output)):
            output: Tensor = self.model.base_model(**batch).last_hidden_state
        return output

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        """The loss of a batch of keyword arguments of the network."""
        whole = self._whole[0]
        with evaluating(self.model), torch.no_grad() if whole is None else nullcontext():
            ours = self.said(self.model, self.exits, batch)
        theirs = ours
        if whole is not None:
            with evaluating(whole), torch.no_grad():
                theirs = self.said(whole, None, batch)
        losses = {at + 1: self._exit_loss(at, ours, theirs, batch) for at in self.exits.by_layer}
        if whole is not None:
            losses[self.exits.last + 1] = self._distance(ours, theirs, batch)
        total = sum(losses)
        loss = torch.stack([n / total * value for n, value in losses.items()]).sum()
        if self.training and not bool(loss.isfinite()):
            raise ValueError(f"the exits cannot learn: the loss is {loss.item()}; try a lower learning rate")
        return {"loss": loss}

    def _exit_loss(self, at: int, ours: Said, theirs: Said, batch: Mapping[str, Tensor]) -> Tensor:
        exit_, states = self.exits.by_layer[at], ours.seen.states[at]
        if not isinstance(exit_, EncoderExit):
            z = exit_(exit_.read(states, mask_of(batch, states)))
            return self._distance(Said(ours.seen, logits=z), theirs, batch)
        y = self.tail(exit_.states(states), ours, batch)
        said = Said(ours.seen, states=y, vectors=self._vectors(y, batch))
        return self._distance(said, theirs, batch)

    def _distance(self, ours: Said, theirs: Said, batch: Mapping[str, Tensor]) -> Tensor:
        if ours.logits is not None:
            assert theirs.logits is not None
            p, q = theirs.logits.float().log_softmax(-1), ours.logits.float().log_softmax(-1)
            return F.kl_div(q, p, reduction="batchmean", log_target=True)
        assert ours.states is not None
        assert theirs.states is not None
        mask = mask_of(batch, theirs.states)
        x, y = ours.states[mask], theirs.states[mask]
        return (1 - ours.cosines(theirs)).mean() + (x - y).square().sum() / y.square().sum()

    @torch.no_grad()
    def foretell(self, rows: Rows) -> None:
        """Fit what distance exits of an encoder foretell, u and v, to that of texts."""
        seen: dict[int, list[tuple[Tensor, Tensor]]] = {at: [] for at in self.exits.by_layer}
        for batch, ours, theirs in self._both(rows.at(range(min(len(rows), FITTED))), lambda _: None):
            for at, exit_ in self.exits.by_layer.items():
                states = ours.seen.states[at]
                vectors = self._vectors(self.tail(exit_.states(states), ours, batch), batch)
                lost = Said(ours.seen, vectors=vectors).lost(theirs).clamp(min=LEAST_DISTANCE)
                seen[at].append((exit_(exit_.read(states, mask_of(batch, states))), lost))
        for at, exit_ in self.exits.by_layer.items():
            assert isinstance(exit_, EncoderExit)
            z, lost = (torch.cat(part) for part in zip(*seen[at], strict=True))
            exit_.fit_error(z, lost)

    @torch.no_grad()
    def measured(self, rows: Rows, by: str, progress: Callable[[float], None]) -> "Outcomes":
        """What would come of texts by every exit, and by the whole network."""
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for batch, ours, theirs in self._both(rows, progress):
            parts.append(self._outcomes(ours, theirs, batch, by))
        scores, classes, losses = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
        order = torch.tensor([place for places in Batches(rows, SIZE).places for place in places]).argsort()
        return Outcomes(scores[order], classes[order], losses[order])

    def _both(self, rows: Rows, progress: Callable[[float], None]) -> Iterator[tuple[Batch, Said, Said]]:
        """Texts in batches, with what the network says to them and what the whole network is to say."""
        batches, whole = Batches(rows, SIZE), self._whole[0]
        device = next(self.model.parameters()).device
        for number in range(len(batches)):
            batch = {name: x.to(device) for name, x in batches[number].items()}
            with evaluating(self):
                ours = self.said(self.model, self.exits, batch)
                yield batch, ours, ours if whole is None else self.said(whole, None, batch)
            progress((number + 1) / len(batches))

    def _outcomes(
        self, ours: Said, theirs: Said, batch: Mapping[str, Tensor], by: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores and classes (B, E) of the exits, and the losses (B, E + 1) by them and by all layers."""
        exits = self.exits.by_layer
        mask = mask_of(batch, ours.seen.entered)
        before = next(iter(exits.values())).read(ours.seen.entered, mask)
        scores, classes, losses = [], [], []
        for at, exit_ in exits.items():
            states = ours.seen.states[at]
            z = exit_(exit_.read(states, mask))
            scores.append(SCORES[by](exit_, z, before).float())
            classes.append(exit_.classes(z))
            before = z
            if isinstance(exit_, EncoderExit):
                y = self.tail(exit_.states(states), ours, batch)
                losses.append(Said(ours.seen, vectors=self._vectors(y, batch)).lost(theirs))
            else:
                losses.append(Said(ours.seen, logits=z).lost(theirs))
        losses.append(ours.lost(theirs))
        return torch.stack(scores, 1), torch.stack(classes, 1), torch.stack(losses, 1)


@dataclass(frozen=True)
class Outcomes:
    """What comes of texts by each way out.

    Attributes:
        scores, classes: Scores of the exits and the classes that they tell, (n, E).
        losses: What is lost of the whole network's answers by each exit, and by all layers, (n, E + 1).
    """

    scores: Tensor
    classes: Tensor
    losses: Tensor

    def places(self, rule: Rule) -> Tensor:
        """The number of the exit by which each text leaves, (n,); E where it leaves by none."""
        return left_by(rule, self.scores, self.classes)

    def lost(self, rule: Rule) -> Tensor:
        """The loss of each text, (n,)."""
        return self.losses.gather(1, self.places(rule)[:, None]).squeeze(1)


class _Progress(TrainerCallback):
    """Reports the progress after every step."""

    def __init__(self, progress: Callable[[str, float], None]) -> None:
        self._progress = progress

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._progress("training exits", state.global_step / state.max_steps)


@contextmanager
def learning(model: PreTrainedModel, exits: EarlyExits, joint: bool) -> Iterator[None]:
    """A `with` block in which gradients are those of the exits alone, unless the layers learn too.

    Afterwards every module is in the mode, training or not, that it was in, and random numbers go on as before.
    """
    modes = [(module, module.training) for module in model.modules()]
    own = {id(x) for x in exits.parameters()}
    stopped = [] if joint else [x for x in model.parameters() if id(x) not in own and x.requires_grad]
    for parameter in stopped:
        parameter.requires_grad_(False)
    try:
        with draws_apart(), in_full(model):
            yield
    finally:
        for parameter in stopped:
            parameter.requires_grad_(True)
        for module, mode in modes:
            module.training = mode


def train(
    model: PreTrainedModel,
    exits: EarlyExits,
    whole: PreTrainedModel | None,
    rows: Rows,
    schedule: Schedule,
    progress: Callable[[str, float], None],
) -> tuple[list[float], list[dict[str, float]]]:
    """Train exits in place; the layers too where the network as it was is given.

    Returns:
        The loss on texts that are not learnt from, before and as training went on; and the log.

    Raises:
        ValueError: There are too few texts for a batch, or the loss is no longer finite.
        Stopped: A signal ended the training early.
    """
    examples, learner = Distillation(rows, schedule), Learner(model, exits, whole)
    with learning(model, exits, whole is not None):
        start = examples.evaluate(learner, "valid", schedule.batch_size)["distance"]
        history = fit(
            learner,  # type: ignore[arg-type]  # the Trainer takes any module
            examples, schedule, label="exits", console=Console(quiet=True), callbacks=(_Progress(progress),),
        )  # fmt: skip
        if history.stopped is not None:
            raise Stopped(history.stopped)
        if exits.classes is None:
            learner.foretell(rows)
    history.log.insert(0, {"step": 0, "eval_distance": start})
    return distances(history), history.log


def copy_of(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a network as it is, which does not learn."""
    return copy.deepcopy(model).requires_grad_(False).eval()


def example_batch(rows: Rows, count: int) -> Batch:
    """A batch of so many texts, of the longest and the shortest in turn, so that there is padding."""
    lengths = rows.lengths
    order = list(range(len(rows))) if lengths is None else sorted(range(len(rows)), key=lambda at: lengths[at])
    chosen = [order[at // 2] if at % 2 else order[-1 - at // 2] for at in range(min(count, len(order)))]
    return rows.collate([rows[at] for at in chosen])
