"""The networks that a search for a network to be trained may try: settings of a run, and other values of some of them.

A network is a row of numbers, one for each part of it that varies: which of the part's values it has. Values of sizes
go up, so that two neighbouring numbers are two neighbouring sizes; names of attentions and positions have no order.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from greenformers.attention import attention_class, names
from greenformers.measure.parameters import parameters
from greenformers.model.slots import choices
from greenformers.model.variant import rank_option
from greenformers.search.space import TRIES, Genes
from greenformers.train.network import KEPT
from greenformers.train.objective import Objective
from greenformers.train.settings import Training

PARTS = ("attention", "rank", "k", "hidden", "layers", "heads", "feed_forward", "position")
"""Parts of a network that may vary, of which `attention` may also be a block."""

NAMED = ("attention", "position")
"""Parts whose values have no order."""

HEADS, NARROWEST = (1, 2, 4, 8, 16), 8
"""Numbers of heads that are tried, and the least width of one."""

IDLE = ("k", "position", "feed_forward")
"""Parts that have no effect beside some attentions and blocks."""

FAR = 0.1
"""How often a size of a child may be any other."""

FULL, LOW_RANK = "full", "lrt"

Fits = Callable[[Genes], bool]


@dataclass(frozen=True)
class NetworkSpace:
    """Values of the parts that vary.

    Attributes:
        base: Settings of the network that others are compared with.
        values: Values of each part that varies, by its name.
        legal: Function that says whether there is a network of a row of numbers.
    """

    base: Training
    values: dict[str, tuple[Any, ...]]
    legal: Callable[[Genes], bool]

    @classmethod
    def of(
        cls, base: Training, objective: Objective, vary: Sequence[str] = PARTS, attentions: Sequence[str] | None = None
    ) -> "NetworkSpace":
        """The space around the settings of a run.

        Args:
            base: The settings.
            objective: What networks are trained for.
            vary: Parts that vary.
            attentions: Attentions and blocks that are tried; by default all that there are.

        Raises:
            ValueError: There is no such part or attention, or nothing is left that varies.
        """
        for name in vary:
            if name not in PARTS:
                raise ValueError(f"vary must be of {', '.join(PARTS)}; got {name!r}")
        mechanisms = [*names(), *choices("block")[1:]]
        for name in attentions or ():
            if name not in mechanisms:
                raise ValueError(f"attentions must be of {', '.join(mechanisms)}; got {name!r}")
        around = _around(base, mechanisms if attentions is None else list(attentions))

        def key(settings: Training) -> str | None:
            """What tells networks apart; None where there is no such network."""
            try:
                config = objective.config(**settings.sizes())
                with torch.device("meta"):
                    model = objective.build(config)
            except (ValueError, TypeError, NotImplementedError):
                return None
            # Blocks without feed-forward have as many parameters whatever its width.
            own = {"position": config.position_of(causal=model.stack_is_causal), "intermediate_size": parameters(model)}
            return f"{settings.sizes() | own}"

        keys: dict[tuple[Any, ...], str | None] = {}

        def known_key(settings: Training) -> str | None:
            own = tuple(part_of(settings, part) for part in PARTS)
            if own not in keys:
                keys[own] = key(settings)
            return keys[own]

        values: dict[str, tuple[Any, ...]] = {}
        for part in (part for part in PARTS if part in vary):
            own = part_of(base, part)
            fitting = [value for value in around[part] if value == own or known_key(with_part(base, part, value))]
            if len(fitting) > 1:
                values[part] = tuple(fitting)
        if not values:
            raise ValueError(f"nothing varies: {', '.join(vary)} have no other value that this network can have")
        start = _genes(base, values)

        def legal(genes: Genes) -> bool:
            own = known_key(_settings(base, values, genes))
            # A part without effect, as k is beside full attention, has the value of the base: no network comes twice.
            without = [
                known_key(_settings(base, values, (*genes[:at], start[at], *genes[at + 1 :])))
                for at, part in enumerate(values)
                if part in IDLE and genes[at] != start[at]
            ]
            return own is not None and own not in without

        return cls(base, values, legal)

    @property
    def start(self) -> Genes:
        """The network of the settings."""
        return _genes(self.base, self.values)

    def settings(self, genes: Genes) -> Training:
        """The settings of a network."""
        return _settings(self.base, self.values, genes)

    def words(self, genes: Genes) -> str:
        """What a network has that the base has not, in words."""
        parts = [
            f"{part.replace('_', '-')} {'dense' if value[gene] is None else value[gene]}"
            for (part, value), gene, own in zip(self.values.items(), genes, self.start, strict=True)
            if gene != own
        ]
        return ", ".join(parts) or "as it is"

    def drawn(self, draw: random.Random, fits: Fits = lambda _: True) -> Genes:
        """A network by chance.

        Args:
            draw: Source of draws.
            fits: Function that says whether a row of numbers is wanted, asked before it is known whether there is such
                a network, which takes longer. Where hardly any is, others are drawn too.
        """
        for _ in range(TRIES):
            rows = (tuple(draw.randrange(len(values)) for values in self.values.values()) for _ in range(TRIES))
            first = next(rows)
            genes = first if fits(first) else next(filter(fits, rows), first)
            if self.legal(genes):
                return genes
        return self.start

    def mutated(self, genes: Genes, draw: random.Random, fits: Fits = lambda _: True) -> Genes:
        """A neighbour: one part, or two, with another value; a size mostly goes a step up or down, now and then far.

        Args:
            genes: The network.
            draw: Source of draws.
            fits: As in `drawn`, which gives another network where no neighbour fits.
        """
        for _ in range(TRIES):
            row = list(genes)
            for place in draw.sample(range(len(row)), min(len(row), draw.choice((1, 2)))):
                part = list(self.values)[place]
                others = [at for at in range(len(self.values[part])) if at != row[place]]
                near = [at for at in others if abs(at - row[place]) == 1]
                row[place] = draw.choice(others if part in NAMED or draw.random() < FAR else near)
            if tuple(row) != genes and fits(tuple(row)) and self.legal(tuple(row)):
                return tuple(row)
        return self.drawn(draw, fits)


def part_of(settings: Training, part: str) -> Any:
    """The value of a part in some settings."""
    low, _, name = settings.variant.rpartition("+")
    if part == "attention":
        return FULL if name in ("transformer", LOW_RANK) else name
    if part == "rank":
        return settings.rank if LOW_RANK in (low, name) else None
    if part == "k":
        return KEPT if settings.k is None else settings.k
    return getattr(settings, part)


def with_part(settings: Training, part: str, value: Any) -> Training:
    """Settings with another value of a part."""
    if part not in ("attention", "rank", "k"):
        return replace(settings, **{part: value})
    own = {name: part_of(settings, name) for name in ("attention", "rank", "k")} | {part: value}
    low = [LOW_RANK] if own["rank"] is not None else []
    attention = [] if own["attention"] == FULL else [own["attention"]]
    variant = "+".join([*low, *attention]) or "transformer"
    k = own["k"] if rank_option(variant) is not None and own["k"] != KEPT else None
    option = settings.option if own["attention"] == part_of(settings, "attention") else None
    rank = type(settings).rank if own["rank"] is None else own["rank"]  # `train` refuses one that nothing has
    way = settings.low_rank_training if low else None  # refused where no layer is of low rank
    return replace(settings, variant=variant, rank=rank, k=k, option=option, low_rank_training=way)


def _genes(base: Training, values: dict[str, tuple[Any, ...]]) -> Genes:
    return tuple(choice.index(part_of(base, part)) for part, choice in values.items())


def _settings(base: Training, values: dict[str, tuple[Any, ...]], genes: Genes) -> Training:
    settings = base
    for (part, choice), gene in zip(values.items(), genes, strict=True):
        if choice[gene] != part_of(settings, part):
            settings = with_part(settings, part, choice[gene])
    return settings


def _around(base: Training, attentions: list[str]) -> dict[str, list[Any]]:
    """Values to try of each part, that of the base among them; those of sizes go up."""
    hidden, heads = base.hidden, base.heads
    own = part_of(base, "attention")
    ranks = sorted({rank for rank in (hidden // 8, hidden // 4, hidden // 2, part_of(base, "rank")) if rank})
    k = part_of(base, "k")
    keeps = any(name in names() and attention_class(name).rank_option for name in [own, *attentions])
    return {
        "attention": list(dict.fromkeys([own, *attentions])),
        "rank": [*ranks, None],
        "k": sorted({max(1, k // 2), k, 2 * k, 4 * k}) if keeps else [k],
        "hidden": _sizes(hidden, 2 * heads, (0.5, 0.75, 1, 1.25, 1.5)),
        "layers": list(range(max(1, base.layers // 2), 2 * base.layers + 1)),
        "heads": sorted({heads, *(count for count in HEADS if hidden % count == 0 and hidden // count >= NARROWEST)}),
        "feed_forward": _sizes(base.feed_forward, 8, (0.25, 0.5, 1, 1.5, 2)),
        "position": list(dict.fromkeys([base.position, *choices("position")])),
    }  # fmt: skip


def _sizes(size: int, multiple: int, shares: Sequence[float]) -> list[int]:
    """Sizes around one, in multiples."""
    return sorted({size, *(max(multiple, multiple * round(share * size / multiple)) for share in shares)})
