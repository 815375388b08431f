"""Lottery tickets: which weights are left, and how they stay the only ones. Frankle 2019, arXiv:1803.03635.

A network is trained; of the weights that are left, the share p with the least |w| is dropped, over all linear layers
together; the others go back to their values at step k of the first training, and are trained from there:

    w_r = train(m_r * w(k)),    m_(r+1) = m_r without the p |m_r| weights of least |w_r|,    |m_n| = (1 - p)^n |m_0|.

k = 0 gives back the initial weights (Frankle 2019), or those of a pre-trained network (Chen 2020, arXiv:2007.12223);
k > 0 is rewinding (Frankle 2020, arXiv:1912.05671). Weights that can be dropped are those of the linear layers inside
the layers of encoder and decoder, low-rank factors among them. Embeddings, layer norms, biases and what stands before
or after the layers, the classification head say, stay dense, as in Chen 2020.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from greenformers.train.replaced_token_detection import GeneratorAndDiscriminator
from greenformers.train.stream import generator

Control = Literal["none", "random", "reinit", "worst"]
Masks = dict[str, Tensor]
"""Mask of each weight, by its name in the network, True where a weight is left."""


@dataclass(frozen=True)
class Lottery:
    """Rounds of iterative magnitude pruning.

    Attributes:
        rounds: Number of times that weights are dropped, at least 1.
        drop: Share of the weights left that each round drops, above 0 and below 1.
        rewind: Share of the first training's steps at whose end the weights are those to go back to, in 0..1 without 1.
        control: Network of the last round: "none", the ticket; "random", a random mask with as many weights in each
            layer; "reinit", the ticket's mask with newly drawn weights; "worst", the mask of as many weights with the
            least |w| of the dense network.

    Raises:
        ValueError: A value is out of range.
    """

    rounds: int
    drop: float = 0.2
    rewind: float = 0.0
    control: Control = "none"

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"lottery_rounds must be at least 1, or 0 for none, got {self.rounds}")
        if not 0 < self.drop < 1:
            raise ValueError(f"lottery_drop must be above 0 and below 1, got {self.drop}")
        if not 0 <= self.rewind < 1:
            raise ValueError(f"lottery_rewind must be at least 0 and below 1, got {self.rewind}")
        if self.control not in get_args(Control):
            raise ValueError(f"lottery_control must be one of {', '.join(get_args(Control))}; got {self.control!r}")

    def counts(self, weights: int) -> list[int]:
        """Numbers of weights left in round 0, which has all of them, to the last one."""
        counts = [weights]
        for _ in range(self.rounds):
            counts.append(counts[-1] - round(self.drop * counts[-1]))
        return counts

    def step(self, steps: int) -> int:
        """The step to go back to, of the steps of a training."""
        return round(self.rewind * steps)

    def check(self, model: nn.Module, steps: int) -> None:
        """Check that every round drops a weight and leaves one, and that the step to go back to is in the training.

        Raises:
            ValueError: The network has too few weights in linear layers, or the training too few steps.
        """
        weights = sum(weight.numel() for weight in linear_weights(model).values())
        counts = self.counts(weights)
        if counts[-1] < 1 or any(before == after for before, after in pairwise(counts)):
            raise ValueError(
                f"lottery_drop must drop a weight in each round and leave one, of {weights} in linear layers; "
                f"got {self.drop} in {self.rounds} rounds"
            )
        if self.rewind and not 1 <= self.step(steps) < steps:
            raise ValueError(f"lottery_rewind must be 0, or end in step 1..{steps - 1} of {steps}; got {self.rewind}")


def linear_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights (m, n) that can be dropped, by name, each once: those of linear layers inside the network's layers.

    Of the two networks of replaced token detection, the discriminator's are meant, which is the one that is saved.
    """
    both = isinstance(model, GeneratorAndDiscriminator)
    linear = {
        id(module.weight)
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and "layers" in path.split(".")
        and not (both and path.startswith("generator."))
    }
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in linear}


def everything(model: nn.Module) -> Masks:
    """The masks of a dense network."""
    return {name: torch.ones(weight.shape, dtype=torch.bool) for name, weight in linear_weights(model).items()}


def left(masks: Masks) -> int:
    """Number of weights left."""
    return sum(int(mask.sum()) for mask in masks.values())


def dropped(masks: Masks, weights: Mapping[str, Tensor], count: int, *, largest: bool = False) -> Masks:
    """The masks without the `count` weights of least |w| among those left, over all layers together.

    The number is exact: of equal weights, those that come first are dropped.

    Args:
        masks: Masks of the weights that are left.
        weights: Trained weights, by name; others than those with a mask are ignored.
        count: Number of weights to drop.
        largest: Whether those of largest |w| are dropped in place of the least.
    """
    alive = torch.cat([mask.flatten() for mask in masks.values()])
    sizes = torch.cat([weights[name].flatten().abs() for name in masks])
    places = alive.nonzero().flatten()
    order = sizes[places].argsort(descending=largest, stable=True)
    alive[places[order[:count]]] = False
    parts = alive.split([mask.numel() for mask in masks.values()])
    return {name: part.view(mask.shape).clone() for (name, mask), part in zip(masks.items(), parts, strict=True)}


def shuffled(masks: Masks, seed: int) -> Masks:
    """Random masks with as many weights left in each layer."""
    source = generator(seed, 4)
    return {
        name: mask.flatten()[torch.randperm(mask.numel(), generator=source)].view(mask.shape)
        for name, mask in masks.items()
    }


class Masked(TrainerCallback):
    """Dropped weights are exactly 0 during training.

    They and their moments are set to 0 when training begins, and their gradients are 0 from then on, so that neither
    the norm to which gradients are clipped nor AdamW sees them: 0 decays to 0.

    Args:
        masks: Masks of the weights that are left.
    """

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._hooks: list[Any] = []

    @torch.no_grad()
    def on_train_begin(  # noqa: D102
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        weights = dict(given["model"].named_parameters())
        for name, mask in self._masks.items():
            weight = weights[name]
            gone = ~mask.to(weight.device)
            moments = given["optimizer"].state.get(weight, {}).values()
            for tensor in (weight, *(moment for moment in moments if moment.shape == weight.shape)):
                tensor.masked_fill_(gone, 0)
            self._hooks.append(weight.register_hook(lambda gradient, gone=gone: gradient.masked_fill(gone, 0)))

    def on_train_end(  # noqa: D102
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
