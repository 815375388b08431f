"""Where networks are trained for a search: each for some steps, judged and timed beside the network of the settings."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any, cast

import torch
from rich.console import Console
from transformers import PreTrainedModel

from greenformers.checkpoint.files import line
from greenformers.data import Split, Splits
from greenformers.measure.latency import interleaved
from greenformers.measure.parameters import parameters
from greenformers.search.network_space import NetworkSpace
from greenformers.search.space import Genes
from greenformers.search.trials import Trial
from greenformers.search.tries import Turn
from greenformers.train.classification import ImageClassification
from greenformers.train.fit import fit
from greenformers.train.objective import Objective
from greenformers.train.run import Stopped
from greenformers.train.settings import Training
from greenformers.train.stream import generator

HELD_OUT = 5
"""One in so many training images judges the search, where there is no validation split."""

ROUGHLY, REPEATS, FAR = 3, 15, 0.7
"""Timed runs of each network: a few, and where these do not show less than so much of the speed asked for, many."""


@dataclass
class NetworkLab:
    """The objective, and the network that others are compared with.

    Attributes:
        space: The networks, and the settings they are trained by.
        objective: What they are trained for, with a validation split of its own.
        seed: Seed of weights and order of the examples.
        least: Least speed-up of a network that is trained. The speed is that of untrained weights as well, and what is
            slower than asked for need not be trained.
        measured_once: Function of a name and of one that gives a figure, see `Trials.measured_once`.
    """

    space: NetworkSpace
    objective: Objective
    seed: int
    least: float = 0.0
    measured_once: Callable[[str, Callable[[], float]], float] = lambda _, measure: measure()
    _base: dict[int, tuple[PreTrainedModel, float]] = field(default_factory=dict, repr=False)

    def trial(self, genes: Genes, steps: int, turn: Turn = lambda work: work(), speed: float | None = None) -> Trial:
        """A network trained for so many steps, judged and timed; one that cannot be says so.

        Args:
            genes: The network.
            steps: Steps of training.
            turn: Function that calls another when nothing else runs.
            speed: How many times as fast it was when it was trained for other steps, which do not change that; None
                where it was not timed. Timed anew at each hurdle, what is as fast as asked for would be refused at one.

        Raises:
            Stopped: A signal ended the training early.
        """
        base, of_base = self.base(steps)
        if genes == self.space.start:
            return Trial(genes, steps, 1.0, 0.0, 1.0)
        try:
            if speed is None:
                network = self.network(genes)
                speed = float(turn(lambda: self.speed_up(base, network)))
            if speed < self.least:
                why = f"{speed:.2f}x as fast, of at least {self.least:g}x: not trained"
                return Trial(genes, steps, speed, refused=why)
            model, quality = self.trained(genes, steps)
            if not isfinite(quality):
                raise ValueError(f"its {self.objective.metric} is no number after {steps} steps")
        except OSError:  # a full disk, say, is no fault of the network
            raise
        except Exception as error:
            return Trial(genes, steps, refused=line(error))
        return Trial(genes, steps, speed, 1 - quality / of_base, parameters(base) / parameters(model))

    def base(self, steps: int) -> tuple[PreTrainedModel, float]:
        """The network of the settings, as it is before training, and its quality after so many steps.

        Raises:
            ValueError: It has no quality that others could be compared with.
        """
        if steps not in self._base:
            start = self.space.start
            # A search that was stopped does not train it again, and would end sooner if it did.
            quality = self.measured_once(f"base-{self.seed}-{steps}", lambda: self.trained(start, steps)[1])
            if not quality > 0:
                raise ValueError(f"the network of the settings has no quality after {steps} steps: {quality:.3g}")
            self._base[steps] = self.network(start), quality
        return self._base[steps]

    def speed_up(self, base: PreTrainedModel, model: PreTrainedModel) -> float:
        """How many times as fast as the base a network is in inference, in turns; roughly, where it is far too slow."""
        batch = self.batch(base)
        speed = 0.0
        for repeats in (ROUGHLY, REPEATS):
            with torch.inference_mode():
                times = interleaved(
                    {"base": partial(base.eval(), **batch), "model": partial(model.eval(), **batch)}, repeats=repeats
                )
            speed = min(times["base"].samples) / min(times["model"].samples)  # other load only adds
            if speed < FAR * self.least:
                break
        return speed

    def batch(self, network: PreTrainedModel) -> dict[str, Any]:
        """A batch of validation examples, without labels; a decoder reads what it is to write, a token later."""
        count = min(self.space.base.batch, self.objective.size("valid"))
        rows = [self.objective.example("valid", at, generator(at)) for at in range(count)]
        batch = self.objective.collate(rows)
        labels = batch.pop("labels", None)
        shifted = getattr(network, "prepare_decoder_input_ids_from_labels", None)
        return batch if labels is None or shifted is None else {**batch, "decoder_input_ids": shifted(labels)}

    def drawn(self, number: int) -> dict[str, Any]:
        """A batch of validation examples by chance, with labels."""
        source = generator(self.seed, number)
        count, size = self.space.base.batch, self.objective.size("valid")
        places = torch.randint(size, (count,), generator=source).tolist()
        return self.objective.collate([self.objective.example("valid", at, source) for at in places])

    def network(self, genes: Genes) -> PreTrainedModel:
        """An untrained network."""
        torch.manual_seed(self.seed)
        return self.objective.build(self.objective.config(**self.space.settings(genes).sizes()))

    def trained(self, genes: Genes, steps: int, split: str = "valid") -> tuple[PreTrainedModel, float]:
        """A network trained for so many steps, and its quality on a split, see `quality_of`.

        Raises:
            Stopped: A signal ended the training early.
        """
        settings: Training = replace(
            self.space.settings(genes), steps=steps, seed=self.seed, evaluate_every=steps, log_every=steps,
            save_every=steps,
        )  # fmt: skip
        model = self.network(genes)
        schedule = settings.schedule
        history = fit(model, self.objective, schedule, label="", console=Console(quiet=True))
        if history.stopped is not None:
            raise Stopped(history.stopped)
        cast(torch.nn.Module, model).to("cpu")  # where networks that are not trained are, beside which it is timed
        if split == "valid":  # which the training has just scored
            return model, quality_of(self.objective, history.curve(f"eval_{self.objective.metric}")[-1][1])
        scores = self.objective.evaluate(model, split, self.space.base.batch)
        return model, quality_of(self.objective, scores[self.objective.metric])


def quality_of(objective: Objective, score: float) -> float:
    """A quality of which more is better; of a loss in nats one divided by its perplexity."""
    if objective.greater_is_better:
        return score
    return float(torch.tensor(-score).exp()) if objective.metric == "loss" else 1 / score


def with_validation(objective: Objective) -> Objective:
    """The objective, where it has no validation split of its own with one that is held out of the training split."""
    if not isinstance(objective, ImageClassification) or objective.data.valid is not None:
        return objective
    data = objective.data
    held = torch.arange(len(data.train)) % HELD_OUT == 0
    return ImageClassification(Splits(data.name, data.classes, _part(data.train, ~held), _part(data.train, held)))


def _part(split: Split, chosen: torch.Tensor) -> Split:
    return replace(split, pixels=split.pixels[chosen], labels=split.labels[chosen])
