"""How far Nystromformer and Performer are from dense attention, untrained, on the queries and keys of a trained model.

    python benchmarks/attention_error.py [--quick] [--json results/attention_error.jsonl] [--picture FILE]

Relative Frobenius error of the output of every layer and head of MiniLM-L6 on blocks of WikiText-2, over the number of
landmarks and of random features, beside the error of the mean of all values, which attends to nothing. The weights
come with the extra `minilm`.
"""

from collections.abc import Iterator, Mapping
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from _harness import Benchmark, Option, Run, data
from compress_minilm import minilm
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter
from rich.table import Table
from torch import Tensor, nn
from transformers import BertModel
from transformers.models.bert.modeling_bert import BertSelfAttention

from greenformers.attention import Shape, build
from greenformers.data._files import need, read_lines
from greenformers.measure.record import Record
from greenformers.measure.spectrum import blocks
from greenformers.report.curves import save
from greenformers.report.names import GREY, name_lines
from greenformers.report.plot import grid, house, looks, new_figure, settle

LENGTH = 256  # the longest that this model was trained on
TEXTS, APART = 8, 40  # blocks, and how many others lie from one to the next
LANDMARKS = (8, 16, 32, 64, 128, 256)
FEATURES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
ITERATIONS = (6, 20)
KERNELS = ("softmax", "hyperbolic")
ROWS = {True: "orthogonal", False: "independent"}
MEAN = "mean of values"
STATISTICS = ("mean", "lower quartile", "median", "upper quartile")

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="two texts, and fewer features",
    options=(
        data("--texts", "wikitext2", "WikiText-2"),
        Option("--picture", "PNG of the errors", Path),
    ),
)


def main(run: Run) -> None:
    model, tokenizer = minilm(run)
    every = blocks(read_lines(need(run.given.texts, "wiki.valid.tokens")), tokenizer, LENGTH)
    count = 2 if run.quick else TEXTS
    approximations = points(FEATURES[:6] if run.quick else FEATURES)
    values, trivial = errors(model, islice(every, 0, count * APART, APART), approximations)
    records = statistics(run, approximations, values, trivial)
    run.show(table(records))
    run.write(records)
    if run.given.picture:
        save(picture(records), run.given.picture)


class Point(NamedTuple):
    """One approximation: a line of the picture, what stands on its horizontal axis, and how it is made."""

    mechanism: str
    line: str
    size: int
    options: dict[str, Any]


def points(features: tuple[int, ...]) -> list[Point]:
    """Every approximation that is measured."""
    approximations = [
        Point("nystromformer", f"{steps} iterations", size, {"landmarks": size, "iterations": steps})
        for steps, size in product(ITERATIONS, LANDMARKS)
    ]
    for kernel, (orthogonal, rows), size in product(KERNELS, ROWS.items(), features):
        options = {"features": size, "kernel": kernel, "orthogonal": orthogonal}
        approximations.append(Point("performer", f"{kernel}, {rows} rows", size, options))
    return approximations


def projected(model: BertModel, ids: Tensor) -> list[Tensor]:
    """Queries, keys and values of one text, the layers as the batch: three (L, H, N, D)."""
    seen: dict[str, list[Tensor]] = {"query": [], "key": [], "value": []}
    layers = [module for module in model.modules() if isinstance(module, BertSelfAttention)]
    hooks = [
        cast(nn.Module, getattr(layer, name)).register_forward_hook(
            lambda _, __, out, outputs=outputs: outputs.append(out)
        )
        for layer in layers
        for name, outputs in seen.items()
    ]
    model(input_ids=ids, attention_mask=torch.ones_like(ids))
    for hook in hooks:
        hook.remove()
    heads = layers[0].num_attention_heads
    return [torch.cat(outputs).unflatten(2, (heads, -1)).transpose(1, 2) for outputs in seen.values()]


def relative(out: Tensor, exact: Tensor) -> Tensor:
    """Frobenius error over the norm, by layer and head (L, H)."""
    return torch.linalg.matrix_norm(out - exact) / torch.linalg.matrix_norm(exact)


@torch.no_grad()
def errors(model: BertModel, texts: Iterator[Tensor], approximations: list[Point]) -> tuple[list[Tensor], Tensor]:
    """Of each approximation the errors over texts, layers and heads (T, L, H), and those of the mean of values.

    Every text has new random rows, the same ones for all its layers and heads.
    """
    rows: list[list[Tensor]] = [[] for _ in approximations]
    trivial = []
    for number, ids in enumerate(texts):
        q, k, v = projected(model, ids)
        shape = Shape(q.shape[1], q.shape[3], q.shape[2])
        exact = build("full", shape)(q, k, v)
        trivial.append(relative(v.mean(2, keepdim=True), exact))
        for point, row in zip(approximations, rows, strict=True):
            torch.manual_seed(number)
            row.append(relative(build(point.mechanism, shape, **point.options)(q, k, v), exact))
        print(f"text {number + 1} done", flush=True)
    return [torch.stack(row) for row in rows], torch.stack(trivial)


def statistics(run: Run, approximations: list[Point], values: list[Tensor], trivial: Tensor) -> list[Record]:
    """Mean and quartiles over texts, layers and heads."""
    records = []
    setting = {"model": "MiniLM-L6", "length": LENGTH, "texts": len(trivial)}
    rows = [
        (point.mechanism, {"line": point.line, "size": point.size}, own)
        for point, own in zip(approximations, values, strict=True)
    ]
    for variant, at, own in [*rows, (MEAN, {}, trivial)]:
        quartiles = own.flatten().quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
        for statistic, value in zip(STATISTICS, [own.mean().item(), *quartiles], strict=True):
            where = {**setting, **at, "statistic": statistic}
            records.append(run.record("relative_error", value, variant, where))
    return records


Curves = dict[str, dict[int, dict[str, float]]]  # line -> size -> statistic -> error


def curves(records: list[Record], mechanism: str) -> Curves:
    lines: Curves = {}
    for record in records:
        if record.variant == mechanism:
            at = record.setting
            lines.setdefault(at["line"], {}).setdefault(at["size"], {})[at["statistic"]] = record.value
    return lines


def of_mean(records: list[Record]) -> dict[str, float]:
    """The statistics of the trivial answer."""
    return {record.setting["statistic"]: record.value for record in records if record.variant == MEAN}


def table(records: list[Record]) -> Table:
    shown = Table("mechanism", "", "size", *STATISTICS, "mean / trivial")
    shown.title = f"Relative error of the output, N {LENGTH}, over texts, layers and heads"
    trivial = of_mean(records)
    shown.add_row(MEAN, "", "", *(f"{trivial[statistic]:.4f}" for statistic in STATISTICS), "1.000")
    for mechanism in ("nystromformer", "performer"):
        for line, sizes in curves(records, mechanism).items():
            for size, values in sizes.items():
                figures = (f"{values[statistic]:.4f}" for statistic in STATISTICS)
                shown.add_row(mechanism, line, str(size), *figures, f"{values['mean'] / trivial['mean']:.3f}")
    return shown


@house
def picture(records: list[Record]) -> Figure:
    """Left landmarks, right features: medians as lines, quartiles as bars, side by side where they would coincide."""
    figure = new_figure(11.4, 4.8, f"Approximations of dense attention on MiniLM-L6's own q, k, v, N {LENGTH}")
    panels = (("nystromformer", "Landmarks m (Nystromformer)"), ("performer", "Random features p (Performer)"))
    trivial = of_mean(records)["median"]
    for axes, (mechanism, words) in zip(grid(figure, 1, 2, sharey=False), panels, strict=True):
        lines = curves(records, mechanism)
        for place, (look, (line, sizes)) in enumerate(zip(looks(lines).values(), lines.items(), strict=True)):
            apart = 2 ** (0.16 * (place - (len(lines) - 1) / 2))
            medians = [values["median"] for values in sizes.values()]
            below = [values["median"] - values["lower quartile"] for values in sizes.values()]
            above = [values["upper quartile"] - values["median"] for values in sizes.values()]
            at = [size * apart for size in sizes]
            axes.plot(at, medians, label=line, color=look.colour, linestyle=look.line, marker=look.marker,
                      markersize=4, linewidth=1)  # fmt: skip
            axes.errorbar(at, medians, [below, above], fmt="none", ecolor=look.colour, elinewidth=1, capsize=2)
        ticks = sorted({size for sizes in lines.values() for size in sizes})
        level = axes.plot(ticks, [trivial] * len(ticks), color=GREY, linewidth=1.2, linestyle=(0, (1, 1)), label=MEAN)
        level[0].set_zorder(0)
        if mechanism == "performer":
            _slope(axes, next(iter(lines.values())))
        _logarithmic(axes, ticks)
        axes.set_xlabel(words)
        axes.set_ylabel("Relative error of the output (median, quartiles)")
        name_lines(axes)
    settle(figure)
    return figure


def _slope(axes: Axes, sizes: Mapping[int, Mapping[str, float]]) -> None:
    """p^-1/2, the rate of a mean of independent terms, from the first point of a line."""
    first = min(sizes)
    ends = (first, max(sizes))
    heights = [sizes[first]["median"] * (p / first) ** -0.5 for p in ends]
    axes.plot(ends, heights, color="#E69F00", linewidth=1, label="slope p^-1/2")


def _logarithmic(axes: Axes, ticks: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())


if __name__ == "__main__":
    BENCHMARK.run(main)
