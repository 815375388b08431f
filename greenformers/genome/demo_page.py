"""The page of `greenformers genome demo`: results of each part, table, pictures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from greenformers.genome.demo import APOE, Part
from greenformers.genome.explain import picture
from greenformers.genome.judge import shown
from greenformers.measure.record import Record
from greenformers.report import page
from greenformers.report.draws import draws
from greenformers.report.plot import Picture

LINFORMER, KNOWN, ALL = "linformer", "logistic regression, known variants", "logistic regression, all variants"


def write(parts: Sequence[Part], folder: Path) -> Path:
    """Write the page and its pictures.

    Args:
        parts: Parts of APOE, two sites that interact, no effect, and surroundings, in this order.
        folder: Folder of the page.
    """
    apoe, pair, nothing, around = parts
    compared = [
        replace(record, setting={"study": part.title} | record.setting)
        for part in (apoe, pair, nothing) for record in part.records
    ]  # fmt: skip
    assert apoe.explained is not None
    pictures = [
        Picture("models", draws("The network and logistic regression", "", compared, "study", metrics=("auc", "f1")),
                "Means over the draws of people; lines: standard deviations.", said(parts)),
        Picture("track", picture(apoe.explained, 5), "Integrated gradients of the test people of a draw.", said(parts)),
        Picture("surroundings", draws(around.title, "Positions more on each side", around.records, "margin",
                metrics=("auc", "f1")), "One draw of people: no standard deviations.", said(parts)),
    ]  # fmt: skip
    odds = [
        replace(apoe.records[0], variant=name, setting={"study": apoe.title}, metric="odds_ratio", value=estimate.ratio,
                unit="", spread=None, interval=None, to=None)
        for name, estimate in apoe.odds.items()
    ]  # fmt: skip
    records: list[Record] = [*compared, *odds, *around.records]
    title = "From genomes to risk, a demonstration"
    return page.write(records, folder, title, drawn=pictures, lead=said(parts), tabulated=compared)


def said(parts: Sequence[Part]) -> str:
    """The results, in a few sentences."""
    apoe, pair, nothing, around = parts
    assert apoe.explained is not None
    best = apoe.explained.ranked[0][0]
    odds = ", ".join(
        f"{name} {estimate.ratio:.2f} ({estimate.low:.2f} to {estimate.high:.2f}; planted {APOE[name].odds_ratio:g})"
        for name, estimate in apoe.odds.items()
    )
    margins = [f"{record.value:.0f} % with {record.setting['margin']:,}" for record in around.records
               if (record.variant, record.metric) == (LINFORMER, "auc")]  # fmt: skip
    return (
        f"All diseases here are made up. {apoe.title}: odds ratios of a copy {odds}; AUC {_auc(apoe, LINFORMER)} of "
        f"Linformer, {_auc(apoe, KNOWN)} of logistic regression on the two variants; the explanation ranks "
        f"{apoe.explained.names.get(best, str(best))} first. {pair.title}: {_auc(pair, LINFORMER)} against "
        f"{_auc(pair, ALL)} of logistic regression on all variants. {nothing.title}: {_auc(nothing, LINFORMER)} and "
        f"{_auc(nothing, ALL)}. {around.title}: Linformer's AUC is {', '.join(margins)} positions more on each side."
    )


def _auc(part: Part, variant: str) -> str:
    record = next(candidate for candidate in part.records if (candidate.variant, candidate.metric) == (variant, "auc"))
    return f"{shown(record, 1)} %"
