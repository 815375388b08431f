"""How to train low-rank layers from the start: every way of the literature, beside dense networks as small.

    python benchmarks/lowrank_training.py [--quick] [--json results/lowrank_training.jsonl] [--only WAY] [--size large]
        [--steps 600]

Tiny Shakespeare by bytes, 3 layers of width 128 with rank 16, 600 steps of 16 x 128 tokens; with `--size large`, for an
accelerator, WikiText-2 by bytes, 6 layers of width 512 with rank 64, 1,000 steps of 64 x 256. Each way is trained with
one seed at every learning rate of a grid, one for all ways by AdamW and one for all by Muon, and at its best with
`--seeds` in all; the rate is chosen by the first half of the validation text, the loss is that of the second half. The
records have the time of each training's steps; the table has none, as trainings are hours apart, and what else the
machine did then is in it.

The ways: another beginning of the factors (spectral, orthogonal), decay of their product (Khodak 2021,
arXiv:2105.01029), a rate or an average of squares of their own, Muon, dense layers for a share of the steps and then
their truncation (Wang 2021, arXiv:2103.03936) with the state of the optimiser, ranks by energy, ranks that shrink in
stages, factors of each head (thesis, equation 3.2), and Muon's step for the product of the factors. The controls: the
dense networks of smaller width with as many parameters, and with as many FLOPs. With --json a training that is in the
file is not repeated.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from _factors import MuonOfProducts, begin_orthogonal, by_energy, narrowed
from _harness import KNOWN, Benchmark, Option, Run, data
from rich.table import Table
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from transformers import PreTrainedModel, set_seed

from greenformers.data import Text, train_tokenizer
from greenformers.data import load as load_data
from greenformers.measure.device import accelerator
from greenformers.measure.narrower import controlled
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record
from greenformers.model.slots import PROJECTIONS
from greenformers.train.causal_lm import CausalLM
from greenformers.train.low_rank import DENSE_SHARE, begin_spectral, decay_products, factors
from greenformers.train.optimizer import Muon, is_matrix
from greenformers.train.rates import risen
from greenformers.train.stream import Stream

DECAY, CLIP, WARMUP = 0.01, 1.0, 0.1
RATE, TIMES = 2e-3, (1.0, 2.0, 4.0)
MUON = (5e-3, 1e-2, 2e-2)
SEEDS, HALF, QUICK = 3, 50_000, 8


@dataclass(frozen=True)
class Size:
    """Sizes of the networks and of their trainings.

    Attributes:
        data: Name of the data set.
        network: Sizes of the dense network.
        rank: Rank of the low-rank layers.
        rank_of_head: Rank of q, k and v where each head has factors of its own.
        steps: Steps of a training.
        length: Tokens of a sequence.
        batch: Sequences of a step.
        slower: The rates of AdamW are divided by it.
    """

    data: str
    network: dict[str, Any]
    rank: int
    rank_of_head: int
    steps: int
    length: int
    batch: int
    slower: float


SIZES = {
    "small": Size(
        "tinyshakespeare",
        {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512, "num_hidden_layers": 3,
         "hidden_dropout_prob": 0.0},
        16, 6, 600, 128, 16, 1.0,
    ),
    "large": Size(
        "wikitext2",
        {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, "num_hidden_layers": 6,
         "hidden_dropout_prob": 0.0},
        64, 14, 1000, 256, 64, 4.0,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Way:
    """A way to train a network.

    Attributes:
        network: Variant of the network.
        about: What it is, for the table.
        muon: Whether Muon trains the matrices inside the layers.
        products: Whether its steps of factors are those of their product.
        begin: What the factors begin as; None for the library's own.
        product: Whether the product of the factors decays, and not they.
        factors: Whether the grid of rates is that of the factors alone.
        betas: Averages of AdamW.
        dense: Share of the steps with dense layers, before they are truncated.
        energy: Whether ranks are chosen by energy then.
        stages: Times the rank, at the shares of the steps at which it shrinks.
        per_head: Whether heads have factors of their own.
    """

    network: str
    about: str
    muon: bool = False
    products: bool = False
    begin: Callable[[nn.Module], None] | None = None
    product: bool = False
    factors: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    dense: float = 0.0
    energy: bool = False
    stages: Mapping[float, int] | None = None
    per_head: bool = False

    def rates(self, size: Size) -> Sequence[float]:
        """The grid of learning rates."""
        return MUON if self.muon else [RATE / size.slower * times for times in TIMES]


WAYS = {
    "dense": Way("transformer", "dense layers"),
    "dense, Muon": Way("transformer", "dense layers", muon=True),
    "low rank": Way("lrt", "two factors, as they are by default"),
    "spectral": Way("lrt", "begins as truncated dense layers", begin=begin_spectral),
    "orthogonal": Way("lrt", "begins with orthogonal factors", begin=begin_orthogonal),
    "product decay": Way("lrt", "begins spectral, its product decays", begin=begin_spectral, product=True),
    "factors' own rate": Way("lrt", "only factors at the rates of the grid", factors=True),
    "factors' own average": Way("lrt", "squares are averaged over 20 steps", betas=(0.9, 0.95)),
    "Muon": Way("lrt", "orthogonalised updates of both factors", muon=True),
    "Muon of products": Way("lrt", "the same of their product, as far as each reaches", muon=True, products=True),
    "spectral, Muon": Way("lrt", "begins spectral, orthogonalised updates", muon=True, begin=begin_spectral),
    "dense first": Way("transformer", "dense for a quarter of the steps, then truncated", dense=DENSE_SHARE),
    "dense first, by energy": Way("transformer", "the same, ranks by energy", dense=DENSE_SHARE, energy=True),
    "dense first, Muon": Way("transformer", "the same as dense first, with Muon", muon=True, dense=DENSE_SHARE),
    "in stages": Way("lrt", "four times the rank, then twice and once", stages={0.0: 4, 0.25: 2, 0.5: 1}),
    "of each head": Way("lrt", "q, k, v have factors of each head", per_head=True),
    "narrow": Way("narrow", "dense, as many parameters as low rank"),
    "narrow, Muon": Way("narrow", "dense, as many parameters as low rank", muon=True),
    "narrow by FLOPs": Way("narrow_flops", "dense, as many FLOPs as low rank"),
    "narrow by FLOPs, Muon": Way("narrow_flops", "dense, as many FLOPs as low rank", muon=True),
}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="a few steps of each way; the figures mean nothing",
    options=(
        data("--data", ".", "folder of the data sets' folders"),
        Option("--only", "one way, or those whose name begins with this"),
        Option("--size", "of networks and trainings", default="small", choices=SIZES),
        Option("--seeds", "trainings at the best rate", int, SEEDS),
        Option("--steps", "of a training, if not those of the size", int),
    ),
    json=KNOWN,
)  # fmt: skip


@dataclass(frozen=True)
class Training:
    """One training: a way, a learning rate and a seed."""

    size: Size
    way: str
    rate: float
    seed: int
    steps: int

    @property
    def setting(self) -> dict[str, Any]:
        """What tells its records from others."""
        size = self.size
        return size.network | {
            "data": size.data, "rank": size.rank, "learning_rate": self.rate, "steps": self.steps, "seed": self.seed,
            "length": size.length, "batch": size.batch,
        }  # fmt: skip


def main(run: Run) -> bool:
    only = run.given.only or ""
    names = [only] if only in WAYS else [name for name in WAYS if name.startswith(only)]
    if not names:
        run.refuse(f"--only must begin one of {', '.join(WAYS)}")
    seeds = 1 if run.quick else run.given.seeds
    size, steps = SIZES[run.given.size], run.given.steps
    if steps is not None and steps < QUICK:
        run.refuse(f"--steps must be at least {QUICK}, got {steps}")
    if steps is not None and run.quick:
        run.refuse(f"--steps must be left out with --quick, which has {QUICK}")
    return study(run, size if steps is None else replace(size, steps=steps), names, seeds, run.given.data)


def study(run: Run, size: Size, names: Sequence[str], seeds: int, folder: Path) -> bool:
    """Train some ways at a size, at every rate with the first seed and at the best with all, and show their losses."""
    steps = QUICK if run.quick else size.steps
    text = load_data(size.data, folder / size.data)
    assert isinstance(text, Text)
    train, valid = text.split("train"), text.split("valid")
    tokenizer = train_tokenizer("bytes", train, max_length=size.length)
    halves = {"choice": valid[:HALF], "report": valid[HALF : 2 * HALF]}
    if run.quick:
        train, halves = train[:50_000], {name: half[:2_000] for name, half in halves.items()}
    tasks = {name: CausalLM(Text(name, train, half, ""), tokenizer, size.length) for name, half in halves.items()}

    def trained(trainings: Sequence[Training]) -> list[Record]:
        return run.trainings(
            trainings,
            lambda training: (training.way, training.setting),
            lambda training: records_of(run, training, tasks),
            lambda new: f"loss {new[1].value:.4f} at {new[1].setting['learning_rate']:g}",
        )

    grid = [
        Training(size, name, rate, 0, steps)
        for name in names
        for rate in WAYS[name].rates(size)[: 1 if run.quick else None]
    ]
    records = of_size(trained(grid), size)
    best = {name: best_rate(records, name, steps) for name in names}
    again = [Training(size, name, best[name], seed, steps) for seed in range(1, seeds) for name in names]
    run.show(shown(of_size(trained(again), size), best, steps))
    return True


def of_size(records: Sequence[Record], size: Size) -> list[Record]:
    """The records of trainings of one size."""
    return [record for record in records if record.setting.get("data") == size.data]


def records_of(run: Run, training: Training, tasks: Mapping[str, CausalLM]) -> list[Record]:
    """Train, and the loss on both halves of the validation text, the parameters and the time of the steps."""
    model, seconds = trained_by(WAYS[training.way], training, tasks["choice"])
    losses = {name: task.evaluate(model, "valid", 64)["loss"] for name, task in tasks.items()}
    return [
        *(run.record("loss", loss, training.way, training.setting | {"half": half}) for half, loss in losses.items()),
        run.record("parameters", parameters(model), training.way, training.setting, source="counted"),
        run.record("train_time", seconds, training.way, training.setting),
    ]


def trained_by(way: Way, training: Training, task: CausalLM) -> tuple[PreTrainedModel, float]:
    """The network, trained, and the seconds that its steps took."""
    size, low = training.size, way.network != "transformer"
    rank: Any = None
    if low:
        rank = size.rank * next(iter((way.stages or {0.0: 1}).values()))
    if way.per_head:
        rank = {name: size.rank_of_head if name in "qkv" else size.rank for name in PROJECTIONS}
    config = task.config(**size.network, rank=rank, rank_per_head=way.per_head)
    ids = torch.zeros(1, size.length, dtype=torch.long)
    config = controlled(way.network, config, task.build, lambda model, _: model(input_ids=ids))
    set_seed(training.seed)
    model = task.build(config)
    if way.begin is not None:
        way.begin(model)
    device = accelerator()
    model.to(device)  # type: ignore[arg-type]
    stream = Stream(task, size.batch, training.steps, training.seed)
    shrinks = {round(share * training.steps): times * size.rank for share, times in (way.stages or {}).items() if share}
    truncated = round(way.dense * training.steps) if way.dense else -1
    optimizers, since = optimisers(way, model, training.rate, size.slower), 0
    model.train()
    spent = 0.0
    for step in range(training.steps):
        batch = task.collate([stream[place] for place in range(step * size.batch, (step + 1) * size.batch)])
        batch = {name: value.to(device) for name, value in batch.items()}
        began = time.perf_counter()
        if step == truncated:
            ranks = dict.fromkeys(dense_layers(model), size.rank)
            if way.energy:
                weights = {name: model.get_submodule(name).weight for name in ranks}
                ranks = by_energy(weights, sum(size.rank * sum(weight.shape) for weight in weights.values()))  # type: ignore
            optimizers, since = after(way, model, training, optimizers, ranks), step
        if step in shrinks:
            ranks = dict.fromkeys(factors(model), shrinks[step])
            optimizers, since = after(way, model, training, optimizers, ranks), step
        share = rate_at(step, training.steps, since)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * share
        model(**batch).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if way.product:
            decay_products(model, training.rate * share * DECAY)
        if device.type != "cpu":
            torch.accelerator.synchronize()
        spent += time.perf_counter() - began
    return model.eval(), spent


def dense_layers(model: nn.Module) -> list[str]:
    """Names of the linear layers inside the layers of the stack."""
    return [name for name, x in model.named_modules() if isinstance(x, nn.Linear) and is_matrix(name, x.weight)]


def optimisers(way: Way, model: nn.Module, rate: float, slower: float) -> list[Optimizer]:
    """Those of a way: AdamW, or Muon for the matrices and AdamW for the rest; `initial_lr` is the highest rate."""
    of_layers = {id(x) for pair in factors(model).values() for x in pair}
    apart = [(x, id(x) in of_layers, is_matrix(name, x)) for name, x in model.named_parameters()]
    usual = RATE / slower if way.muon or way.factors else rate
    groups: list[dict[str, Any]] = []
    if not way.muon:
        of_factors = [x for x, is_factor, _ in apart if is_factor]
        if of_factors:
            decay = 0.0 if way.product else DECAY
            groups.append({"params": of_factors, "lr": rate, "weight_decay": decay, "betas": way.betas})
        groups.append({"params": [x for x, is_factor, _ in apart if not is_factor], "lr": usual})
        optimizers: list[Optimizer] = [AdamW(groups, weight_decay=DECAY)]
    else:
        matrices = [x for x, is_factor, matrix in apart if matrix and not (way.products and is_factor)]
        optimizers = [Muon([{"params": matrices, "weight_decay": DECAY}], lr=rate)] if matrices else []
        optimizers.append(AdamW([x for x, _, matrix in apart if not matrix], lr=usual, weight_decay=DECAY))
        if way.products:
            optimizers.append(MuonOfProducts(factors(model).values(), rate, DECAY))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def after(
    way: Way, model: nn.Module, training: Training, before: list[Optimizer], ranks: dict[str, int]
) -> list[Optimizer]:  # fmt: skip
    """The optimisers after layers were truncated to these ranks, with what is known of parameters that stay."""
    states: dict[Tensor, Any] = {x: state for optimizer in before for x, state in optimizer.state.items()}
    states |= narrowed(model, ranks, None if way.stages else before[0])
    new = optimisers(way, model, training.rate, training.size.slower)
    for optimizer in new:
        for group in optimizer.param_groups:
            optimizer.state.update({x: states[x] for x in group["params"] if x in states})
    return new


def rate_at(step: int, steps: int, since: int) -> float:
    """The share of the highest rate: linear warm-up and a cosine to 0; it rises again after a truncation."""
    done = (step - WARMUP * steps) / ((1 - WARMUP) * steps)
    share = (step + 1) / max(1, round(WARMUP * steps)) if done < 0 else 0.5 * (1 + math.cos(math.pi * done))
    return min(share, 1.0) * (risen(step, steps, since) if since else 1.0)


def best_rate(records: Sequence[Record], way: str, steps: int) -> float:
    """The rate at which the first seed's loss on the half for choices is least."""
    tried = {
        record.setting["learning_rate"]: record.value
        for record in records
        if (record.variant, record.metric) == (way, "loss")
        and record.setting.items() >= {"seed": 0, "half": "choice", "steps": steps}.items()
    }
    return min(tried, key=lambda rate: tried[rate])


def shown(records: Sequence[Record], best: Mapping[str, float], steps: int) -> Table:
    """A row for each way: the loss of all seeds at its best rate, and parameters."""
    table = Table("way", "what it is", "best rate", "loss, each seed", "mean", "parameters")
    for name, rate in best.items():
        losses = values(records, name, rate, "loss", steps, half="report")
        count = values(records, name, rate, "parameters", steps)[0]
        table.add_row(
            name, WAYS[name].about, f"{rate:g}", " ".join(f"{loss:.3f}" for loss in losses), f"{mean_of(losses):.3f}",
            f"{count / 1000:,.0f} k",
        )  # fmt: skip
    return table


def values(records: Sequence[Record], way: str, rate: float, metric: str, steps: int, **more: Any) -> list[float]:
    """The values of a metric of all seeds of a way at a rate."""
    setting = {"learning_rate": rate, "steps": steps} | more
    return [
        record.value
        for record in records
        if (record.variant, record.metric) == (way, metric) and record.setting.items() >= setting.items()
    ]


def mean_of(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


if __name__ == "__main__":
    BENCHMARK.run(main)
