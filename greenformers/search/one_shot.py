"""A network by one training: every choice is in it at once, with shares that are learned.

DARTS of first order (Liu 2018, arXiv:1806.09055):

    x <- x + g_l (sum_c p_c layer_c(x) - x),    p_c = product over parts of softmax(alpha_part)[c_part]

A layer c has one value of each part that varies; g_l is the share of depths above l. In turns a step on a training
batch changes weights, and one on a validation batch changes alphas, whose loss has the expected time in it beyond what
is asked for: each layer is timed once. In the end the likeliest network is trained anew.
"""

import json
import math
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.measure.latency import interleaved
from greenformers.model.stack import run
from greenformers.search.hurdles import Hurdles
from greenformers.search.network_lab import REPEATS, NetworkLab
from greenformers.search.network_space import IDLE, NetworkSpace, with_part
from greenformers.search.space import Genes
from greenformers.train import checkpoint

IN_LAYER = ("attention", "rank", "k", "heads", "feed_forward")
"""Parts that a layer can have several values of at once; the number of layers is the other part that can vary."""

MOST = 64
"""Layers in place of one."""

RATE, DECAY, BETAS = 3e-2, 1e-3, (0.5, 0.999)
"""Learning rate, weight decay and betas of the alphas; the rate is higher than in DARTS, as there are fewer steps."""

SEEKING = 1.25
"""How many times the seconds of its plan a search takes before no more networks that are too slow are passed over."""

WEIGHT = 2.0
"""Weight of the logarithm of the expected time beyond what is asked for, in the loss of the alphas."""


class Shares(nn.Module):
    """The share of each value of each part that varies.

    Args:
        counts: Number of values by part.

    Attributes:
        possible: Which combinations of values have a layer; None for all.
    """

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__()
        self.alphas = nn.ParameterDict({part: nn.Parameter(torch.zeros(count)) for part, count in counts.items()})
        self.possible: Tensor | None = None

    def of(self, part: str) -> Tensor:
        """Shares of the values of a part (values,), which sum to 1."""
        return self.alphas[part].softmax(0)

    def combined(self, parts: list[str]) -> Tensor:
        """Shares of all combinations of values of some parts, the last part's values running fastest."""
        whole = torch.ones(1)
        for part in parts:
            whole = (whole[:, None] * self.of(part)).flatten()
        return whole if self.possible is None else whole[self.possible] / whole[self.possible].sum()


class MixedLayer(nn.Module):
    """Layers in place of one, weighted by their shares.

    Args:
        layers: The layers.
        shares: Shares of values.
        parts: Parts whose combinations the layers are, in order.
        depths: Depths that are possible, least first; None where that does not vary.
        index: Number of the layer.
    """

    reversible = False

    def __init__(
        self, layers: list[Any], shares: Shares, parts: list[str], depths: tuple[int, ...] | None, index: int
    ) -> None:
        super().__init__()
        self.choices = nn.ModuleList(layers)
        self.parts, self._depths, self._index = parts, depths, index
        self._shares = [shares]  # not among its own parameters

    @property
    def gate(self) -> Tensor:
        """Share of the depths that have this layer."""
        if self._depths is None:
            return torch.ones(())
        has = torch.tensor([float(self._index < depth) for depth in self._depths])
        return (self._shares[0].of("layers") * has).sum()

    def forward(self, x: Tensor, key_mask: Tensor | None = None, **_: Any) -> Any:
        """See `stack.run`."""
        weights, losses = self._shares[0].combined(self.parts), list[Tensor]()
        mixed = torch.zeros_like(x)
        for weight, layer in zip(weights, self.choices, strict=True):
            ran = run([layer], x, key_mask)
            mixed = mixed + weight * ran.x
            losses += [] if ran.loss is None else [weight * ran.loss]
        x = x + self.gate * (mixed - x)
        return (x, sum(losses[1:], losses[0])) if losses else x


def parts_of(space: NetworkSpace) -> list[str]:
    """The parts that layers vary in.

    Raises:
        ValueError: A part cannot vary within one network, or there are too many combinations.
    """
    for part in space.values:
        if part not in (*IN_LAYER, "layers"):
            raise ValueError(
                f"one network cannot have several values of {part}: vary must be of {', '.join((*IN_LAYER, 'layers'))}"
            )
    parts = [part for part in IN_LAYER if part in space.values]
    count = 1
    for part in parts:
        count *= len(space.values[part])
    if count > MOST:
        raise ValueError(
            f"one network can have {MOST} layers in place of each, got {count}: let fewer parts or values vary"
        )
    return parts


def by_one_shot(hurdles: Hurdles, folder: Path) -> None:
    """Train one network of all choices until time or steps are over, then the likeliest that is fast enough."""
    ranking = folder / "one-shot.json"
    if not ranking.is_file():
        shares = _learned(hurdles)
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.replace(ranking, json.dumps(likeliest(hurdles.space, shares)))  # whole, or it is learned again
    rows: list[Genes] = [tuple(row) for row in json.loads(ranking.read_text())]
    for row in rows:
        if row == hurdles.space.start or not hurdles.space.legal(row):  # the first is as fast as itself, and trained
            continue
        refused = hurdles.train(row, hurdles.plan.rungs[-1]).refused is not None
        if not refused or hurdles.tries.trials.seconds > SEEKING * hurdles.plan.seconds:
            return


def likeliest(space: NetworkSpace, shares: Shares) -> list[Genes]:
    """All networks, the likeliest first; rows that differ in a part without effect are one network."""
    of = [shares.of(part).tolist() for part in space.values]
    sums: dict[Genes, float] = {}
    for row in product(*(range(len(values)) for values in space.values.values())):
        own: Genes = row
        for at, part in enumerate(space.values):
            plain = (*own[:at], space.start[at], *own[at + 1 :])
            if part in IDLE and own != plain and not space.legal(own) and space.legal(plain):
                own = plain
        sums[own] = sums.get(own, 0.0) + math.prod(share[gene] for share, gene in zip(of, row, strict=True))
    return sorted(sums, key=lambda row: -sums[row])


def supernet(space: NetworkSpace, lab: NetworkLab, shares: Shares) -> tuple[PreTrainedModel, list[MixedLayer]]:
    """The network of all choices, of as many layers as the deepest has, and its layers."""
    depths = space.values.get("layers")
    deepest = space.base if depths is None else replace(space.base, layers=depths[-1])
    torch.manual_seed(lab.seed)
    model = lab.objective.build(lab.objective.config(**deepest.sizes()))
    parts = [part for part in IN_LAYER if part in space.values]
    stacks: list[Any] = []
    for values in product(*(space.values[part] for part in parts)):
        settings = deepest
        for part, value in zip(parts, values, strict=True):
            settings = with_part(settings, part, value)
        try:
            stacks.append(stack_of(lab.objective.build(lab.objective.config(**settings.sizes()))).layers)
        except ValueError:  # each value can be alone; what cannot be together has no share
            stacks.append(None)
    shares.possible = torch.tensor([layers is not None for layers in stacks])
    stacks = [layers for layers in stacks if layers is not None]
    stack = stack_of(model)
    mixed = [MixedLayer(list(layers), shares, parts, depths, at) for at, layers in enumerate(zip(*stacks, strict=True))]
    stack.layers = nn.ModuleList(mixed)
    return model, mixed


def stack_of(model: PreTrainedModel) -> Any:
    """The part of a network that has its layers."""
    return next(part for part in model.modules() if isinstance(getattr(part, "layers", None), nn.ModuleList))


def _learned(hurdles: Hurdles) -> Shares:
    space, lab, plan = hurdles.space, hurdles.lab, hurdles.plan
    shares = Shares({part: len(values) for part, values in space.values.items()})
    model, mixed = supernet(space, lab, shares)
    costs = Costs(space, lab, shares, mixed)
    schedule = replace(space.base, steps=plan.rungs[-1], seed=lab.seed).schedule
    stream = schedule.stream(lab.objective)
    weights = torch.optim.AdamW(model.parameters(), schedule.learning_rate, weight_decay=schedule.weight_decay)
    alphas = torch.optim.Adam(shares.parameters(), RATE, BETAS, weight_decay=DECAY)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(weights, stream.steps)
    model.train()
    for step in range(stream.steps):
        if hurdles.over_now:
            break
        at = range(step * schedule.batch_size, (step + 1) * schedule.batch_size)
        weights.zero_grad()
        model(**lab.objective.collate([stream[index] for index in at])).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), schedule.clip or math.inf)
        weights.step()
        rates.step()
        alphas.zero_grad()
        beyond = (costs.expected() * (plan.bound.faster or 1) / costs.base).log().clamp(min=0)
        (model(**lab.drawn(step)).loss + WEIGHT * beyond).backward()
        alphas.step()
    return shares


class Costs:
    """Seconds of networks, from those of one layer of each choice.

    Args:
        space: The networks.
        lab: Where they are trained.
        shares: Shares of values.
        mixed: Layers of the network of all choices.

    Attributes:
        base: Seconds of the network of the settings.
    """

    def __init__(self, space: NetworkSpace, lab: NetworkLab, shares: Shares, mixed: list[MixedLayer]) -> None:
        base = lab.network(space.start).eval()
        seen: list[Tensor] = []
        first = stack_of(base).layers[0]
        hook = first.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        with torch.inference_mode():
            base(**lab.batch(base))
            hook.remove()
            calls: dict[str, Any] = {
                "whole": partial(base, **lab.batch(base)),
                "own": partial(run, [first], *seen),
            }
            calls |= {str(number): partial(run, [layer.eval()], *seen) for number, layer in enumerate(mixed[0].choices)}
            times = {name: timing.median for name, timing in interleaved(calls, repeats=REPEATS).items()}
        self.base = times["whole"]
        self._rest = max(0.0, self.base - space.base.layers * times["own"])
        self._layers = torch.tensor([times[str(number)] for number in range(len(mixed[0].choices))])
        self._shares, self._mixed = shares, mixed

    def expected(self) -> Tensor:
        """Seconds that a network drawn by the shares is expected to take."""
        layer = (self._shares.combined(self._mixed[0].parts) * self._layers).sum()
        return self._rest + torch.stack([mixed.gate for mixed in self._mixed]).sum() * layer
