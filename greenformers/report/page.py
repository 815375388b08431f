"""A report page of records: headline, table, pictures and how they were measured. The page needs no other file."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from greenformers.measure.record import METRICS, Record
from greenformers.report.digits import number, reference, times
from greenformers.report.plot import Picture, pictures, png
from greenformers.report.sections import Section, sections, sections_with_figures, variants
from greenformers.report.table import Cell, change, interval, legend, rows

# The words of a headline, by metric. The headline is of the first metric that was improved.
_SPEEDS = {
    "latency": "runs {} as fast",
    "train_step": "runs forward and backward {} as fast",
    "train_time": "trains {} as fast",
}
_AMOUNTS = {
    "flops": ("needs", "fewer", "FLOPs"),
    "parameters": ("has", "fewer", "parameters"),
    "size": ("takes", "less", "space on disk"),
    "peak_memory_inference": ("needs", "less", "memory at inference"),
    "peak_memory_training": ("needs", "less", "memory in training"),
}
_GAINS = (*_SPEEDS, "flops", "parameters", "size")
_MEMORY = ("peak_memory_inference", "peak_memory_training")
# Names of the quality metrics, each of which the headline adds where it was measured.
_QUALITY = {
    "test_accuracy": "test accuracy",
    "accuracy": "accuracy",
    "f1": "F1",
    "auc": "area under the ROC curve",
    "spearman": "Spearman's correlation",
    "cosine": "cosine to the dense model's outputs",
    "perplexity": "perplexity",
    "bleu": "BLEU",
    "chrf": "chrF",
    "wer": "word error rate",
    "cer": "character error rate",
}

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f23; --soft: #57606a; --line: #d4d9de; --paper: #fff; --band: #f4f6f8;
  --better: #00694a; --worse: #a63c06; --shade: rgb(0 0 0 / .28); }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a3abb3; --line: #3a4149; --paper: #14171a;
  --band: #1e2328; --better: #56d3a6; --worse: #ff9c66;
  --shade: rgb(255 255 255 / .3); } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.55 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 3rem 0 1rem; }
.lead { font-size: 1.2rem; max-width: 46rem; margin: 0; }
/* A shadow on a side that has more: the first two layers travel with the content, and cover it at its end. */
.scroll { overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 30%, transparent) 0 0 / 2.5rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 30%, transparent) 100% 0 / 2.5rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) 0 0 / 1rem 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) 100% 0 / 1rem 100% no-repeat scroll; }
.scroll::-webkit-scrollbar { height: .6rem; }
.scroll::-webkit-scrollbar-thumb { background: var(--soft); border-radius: .3rem; }
.hint { display: none; color: var(--soft); font-size: .9rem; margin: 0 0 .6rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
caption { text-align: left; color: var(--soft); padding-bottom: .6rem; }
th, td { padding: .3rem .9rem .3rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
tbody th, thead th:first-child { text-align: left; }
tbody th[scope=row] { font-weight: normal; padding-left: .5rem; }
tbody th[scope=rowgroup] { background: var(--band); padding: .5rem; white-space: normal; }
th small { font-weight: normal; color: var(--soft); margin-left: .5rem; }
td span { display: inline-block; min-width: 3.3rem; color: var(--soft); }
td .better { color: var(--better); }
td .worse { color: var(--worse); }
.notes { color: var(--soft); font-size: .9rem; padding-left: 1.1rem; }
figure { margin: 0 0 2.5rem; }
figure img { display: block; max-width: 100%; height: auto; background: #fff; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .4rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: 0 0 1.5rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { tbody th[scope=row], thead th:first-child { position: sticky; left: 0; min-width: 6.5rem;
  background: var(--paper); white-space: normal; padding: .3rem .6rem .3rem 0; }
  .hint { display: block; }
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .6rem; } }
""".strip()


class Listing(NamedTuple):
    """A table of a page beside that of its records.

    Attributes:
        title: Heading above it.
        caption: What its rows are.
        head: Heads of the columns.
        rows: Texts of each row; the first is its name.
    """

    title: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def write(
    records: Iterable[Record],
    folder: str | Path,
    title: str = "Greenformers: measured, not claimed",
    *,
    drawn: Sequence[Picture] | None = None,
    lead: str | None = None,
    tabulated: Sequence[Record] | None = None,
    listed: Sequence[Listing] = (),
) -> Path:
    """Write `index.html`, with its pictures inside, and the same pictures beside it as PNG. Returns the page's path.

    The same records give the same bytes. All files are first written in full under other names, so that a failure
    leaves an earlier page as it was.

    Args:
        records: Records of the measurements.
        folder: Folder of the files.
        title: Title of the page.
        drawn: Pictures of the page; None for those of `greenformers.report.plot` and a table of all records.
        lead: Text that the page begins with; None for the headline of the records.
        tabulated: Records of the table where `drawn` is given; None for no table.
        listed: Further tables, below the pictures.

    Raises:
        ValueError: There are no records, or a record's metric is not in `METRICS`.
        OSError: The folder cannot be written.
    """
    records = list(records)
    if not records:
        raise ValueError("a page needs at least one record, got none")
    images = [(picture, png(picture.figure)) for picture in (pictures(records) if drawn is None else drawn)]
    shown = records if drawn is None else tabulated or []
    rows_of = sections_with_figures(shown)
    page = _page(records, title, headline(records) if lead is None else lead, rows_of, images, listed)
    folder = Path(folder)
    _put(folder, {**{f"{picture.name}.png": image for picture, image in images}, "index.html": page.encode()})
    return folder / "index.html"


def headline(records: Iterable[Record]) -> str:
    """The result in a few sentences: the largest gain in speed, and the other gains and losses of the same variant.

    Raises:
        ValueError: A record's metric is not in `METRICS`.
    """
    grouped = sections(records)
    compared = [
        (section, record)
        for section in grouped
        for record in section.cells.values()
        if record.to == section.baseline and change(section, record).change
    ]
    if not compared:
        return f"Measured: {_count(len(variants(grouped)), 'variant')} in {_count(len(grouped), 'setting')}."
    for metric in _GAINS:
        gains = [pair for pair in compared if pair[1].metric == metric and change(*pair).verdict == "better"]
        if gains:
            section, record = max(gains, key=lambda pair: pair[1].ratio or 0)
            same = [pair for pair in compared if pair[1].variant == record.variant]
            return " ".join([_gain(section, record), *_elsewhere(section, record, same), *_qualities(same)])
    return f"No variant improves on {compared[0][0].baseline} in speed or size."


def _gain(section: Section, record: Record) -> str:
    comparison = "as" if record.metric in _SPEEDS else "than"
    text = f"{section.title}: {record.variant} {_phrase(record.metric, [record])} {comparison} {record.to}"
    for metric in _MEMORY:
        other = section.cells.get((metric, record.variant))
        verdict = change(section, other).verdict if other else "same"
        if other and verdict != "same":
            return f"{text} {'and' if verdict == 'better' else 'but'} {_phrase(metric, [other])}."
    return f"{text}."


def _phrase(metric: str, records: Sequence[Record]) -> str:
    """The gain or loss of a variant in words: "runs 1.3x to 2.1x as fast", "needs 4 % more memory at inference"."""
    ratios = [record.ratio or 1 for record in records]
    if metric in _SPEEDS:
        return _SPEEDS[metric].format(" to ".join(dict.fromkeys(map(times, ratios))))
    verb, less, amount = _AMOUNTS[metric]
    return f"{verb} {' to '.join(dict.fromkeys(_share(ratio, less) for ratio in ratios))} {amount}"


def _share(ratio: float, less: str) -> str:
    """The change of an amount against the baseline's in words: per cent, or from twice as much on, times."""
    needed = 1 / ratio
    if needed >= 2:
        return f"{times(needed)} the"
    percent = 100 * abs(1 - needed)
    return f"{percent:.{0 if percent < 99 else 1}f} % {less if needed < 1 else 'more'}"


def _elsewhere(section: Section, record: Record, same: Sequence[tuple[Section, Record]]) -> list[str]:
    """A sentence with the range of the same ratio in the other settings, so that the best does not stand for all."""
    others = [other for place, other in same if other.metric == record.metric and place is not section]
    if not others:
        return []
    others.sort(key=lambda other: other.ratio or 1)
    where = "In the other setting" if len(others) == 1 else f"In the other {len(others)} settings"
    return [f"{where} it {_phrase(record.metric, [others[0], others[-1]])}."]


def _qualities(same: Sequence[tuple[Section, Record]]) -> list[str]:
    return [_quality(section, record) for section, record in same if record.metric in _QUALITY]


def _quality(section: Section, record: Record) -> str:
    """A sentence on the quality of a variant beside the baseline's, and whether the difference is within noise."""
    metric = METRICS[record.metric]
    base = reference(record)
    if metric.unit == "%":
        points = record.value - base
        words = f"{record.value:.1f} %, {abs(points):.1f} points {'above' if points > 0 else 'below'} {record.to}"
    else:
        words = f"{number(record.value)}; {record.to}: {number(base)}"
    if record.interval:
        words += f" (95 % interval of the difference {interval(record)})"
    if change(section, record).verdict == "same":
        words += ", which is within noise"
    return f"{section.title}: its {_QUALITY[record.metric]} is {words}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _page(
    records: Sequence[Record],
    title: str,
    lead: str,
    tabulated: Sequence[Section],
    drawn: Sequence[tuple[Picture, bytes]],
    listed: Sequence[Listing] = (),
) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{escape(title)}</title>
<style>
{_STYLE}
</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
{_table(tabulated) if tabulated else ""}
{"<h2>Pictures</h2>" if drawn else ""}
{"".join(_figure(picture, image) for picture, image in drawn)}
{"".join(map(_listing, listed))}<h2>How it was measured</h2>
{_sources(records)}{_contexts(records)}</main>
</body>
</html>
"""


def _table(tabulated: Sequence[Section]) -> str:
    names = variants(tabulated)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(_body(section, names) for section in tabulated)
    notes = "".join(f"<li>{escape(note)}</li>\n" for note in legend(tabulated))
    hint = '<p class="hint">More columns to the right: the table scrolls sideways.</p>\n' if len(names) > 2 else ""
    return f"""<h2>Table</h2>
{hint}<div class="scroll" role="region" aria-label="Table" tabindex="0">
<table>
<caption>Each measure of each variant, setting by setting.</caption>
<thead>
<tr><th scope="col">Measure</th>{head}</tr>
</thead>
{body}</table>
</div>
<ul class="notes">
{notes}</ul>"""


def _listing(listing: Listing) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in listing.head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(text)}</td>" for text in row[1:])}</tr>\n'
        for row in listing.rows
    )
    return f"""<h2>{escape(listing.title)}</h2>
<p class="hint">More columns to the right: the table scrolls sideways.</p>
<div class="scroll" role="region" aria-label="{escape(listing.title)}" tabindex="0">
<table>
<caption>{escape(listing.caption)}</caption>
<thead>
<tr>{head}</tr>
</thead>
<tbody>
{body}</tbody>
</table>
</div>
"""


def _body(section: Section, names: Sequence[str]) -> str:
    detail = f" <small>{escape(section.detail)}</small>" if section.detail else ""
    title = f'<th scope="rowgroup" colspan="{len(names) + 1}">{escape(section.title)}{detail}</th>'
    lines = [
        f'<th scope="row">{escape(row.label)}</th>{"".join(map(_cell, row.cells))}' for row in rows(section, names)
    ]
    return "<tbody>\n" + "".join(f"<tr>{line}</tr>\n" for line in [title, *lines]) + "</tbody>\n"


def _cell(cell: Cell) -> str:
    against = f' <span class="{cell.verdict}">({escape(cell.change)})</span>' if cell.change else ""
    return f"<td>{escape(cell.value)}{against}</td>"


def _figure(picture: Picture, image: bytes) -> str:
    data = base64.b64encode(image).decode()
    width, height = (round(100 * inches) for inches in picture.figure.get_size_inches())
    return f"""<figure>
<img width="{width}" height="{height}" alt="{escape(picture.alt)}" src="data:image/png;base64,{data}">
<figcaption>{escape(picture.caption)}</figcaption>
</figure>
"""


def _sources(records: Sequence[Record]) -> str:
    """A list of the metrics that were measured, those that were counted, and those that were estimated."""
    kinds = {record.source: "" for record in records}
    for kind in kinds:
        metrics = {record.metric for record in records if record.source == kind}
        kinds[kind] = "; ".join(METRICS[metric].label for metric in METRICS if metric in metrics)
    return _list({kind.capitalize(): labels for kind, labels in kinds.items()})


def _contexts(records: Sequence[Record]) -> str:
    """Command, seed, versions and machine of each run; runs that differ only in their time are listed as one."""
    runs: dict[str, dict[str, Any]] = {}
    hours: dict[str, set[str]] = {}
    for record in records:
        settled = {key: value for key, value in record.context.items() if key != "time"}
        key = json.dumps(settled, sort_keys=True, default=str)
        runs[key] = settled
        hours.setdefault(key, set()).add(str(record.context.get("time", "")))
    lists = []
    for key, settled in runs.items():
        ends = dict.fromkeys((min(hours[key]), max(hours[key])))
        lists.append(_list({**{_name(name): value for name, value in settled.items()}, "Time": " to ".join(ends)}))
    return "".join(lists)


def _name(key: str) -> str:
    text = key.replace("_", " ")
    return text[:1].upper() + text[1:]


def _list(items: dict[str, Any]) -> str:
    lines = [
        f"<dt>{escape(name)}</dt><dd>{escape(_words(value))}</dd>\n" for name, value in items.items() if value != ""
    ]
    return f"<dl>\n{''.join(lines)}</dl>\n" if lines else ""


def _words(value: Any) -> str:
    return ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)


def _put(folder: Path, files: dict[str, bytes]) -> None:
    """Replace files of a folder, in their order, after all are written; the page comes last, after its pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".page-") as staging:
        for name, data in files.items():
            Path(staging, name).write_bytes(data)
        for name in files:
            os.replace(Path(staging, name), folder / name)
