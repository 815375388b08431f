"""The figures of the efficiency study, from records of a grid of lengths and ranks.

They are figures 3.4 to 3.7 of the Greenformers thesis (Cahyawijaya 2021), figure 2 and table 3 of Linformer (Wang 2020,
arXiv:2006.04768), and table II of the survey (Fournier 2021, arXiv:2103.14636).
"""

from collections.abc import Iterable, Mapping, Sequence
from math import log
from pathlib import Path

from greenformers.measure.bench import NAMES
from greenformers.measure.grid import BASELINE, EAGER, MODES
from greenformers.measure.record import Record
from greenformers.report import page, published
from greenformers.report.curves import Panel, line_panels
from greenformers.report.heat import Field, Heat, Scale, heat_maps
from greenformers.report.names import broken
from greenformers.report.plot import Picture
from greenformers.report.rates import rates

BETTER = Scale("times better than dense (2x: twice as fast, or half the memory)")

MOST = 4
"""Greatest number of variants in a panel of lines, beside the two dense ones."""

PEAK = 1.15
"""Least ratio of a time to those of its neighbours where it counts as a peak."""

Cells = Mapping[tuple[str, str], Mapping[tuple[int, int | None], Record]]
"""Records by length and rank, by variant and metric."""


def write(records: Iterable[Record], folder: Path, references: Path | None = None) -> Path:
    """Write the page and its pictures; the same records give the same bytes.

    Args:
        records: Records of `bench`; others are left out. Where a cell was measured several times, the last counts.
        folder: Folder of the files.
        references: Folder with the published figures; None for none.

    Returns:
        The path of the page.

    Raises:
        ValueError: There are no records of `bench`.
        OSError: The folder cannot be written.
    """
    grid_records = [record for record in records if record.benchmark == "bench"]
    if not grid_records:
        raise ValueError("there are no records of `greenformers bench` to draw")
    lead = "Each variant beside the dense network with SDPA, measured in the same interleaved run."
    return page.write(grid_records, folder, "The efficiency study", drawn=pictures(grid_records, references), lead=lead)


def pictures(records: Sequence[Record], references: Path | None = None) -> list[Picture]:
    """All figures that these records allow.

    Args:
        records: Records of `bench`.
        references: Folder with the published figures; None for none.
    """
    cells: dict[tuple[str, str], dict[tuple[int, int | None], Record]] = {}
    for record in records:
        at = (record.setting["length"], record.setting["rank"])
        cells.setdefault((record.variant, record.metric), {})[at] = record
    ranked = list(dict.fromkeys(r.variant for r in records if r.setting["rank"] is not None))
    drawn = [_against_dense(cells, ranked, mode, references) for mode in MODES]
    variants = list(dict.fromkeys([BASELINE, EAGER, *(record.variant for record in records)]))
    drawn += [_one_against_another(cells, references), _parameters(cells, ranked), _time(cells, variants)]
    drawn += [_saved(cells, variant, references) for variant in ranked if variant in published.SAVED]
    drawn.append(rates(cells, references))
    return [picture for picture in drawn if picture is not None]


def _ratios(cells: Cells, variant: str, metric: str) -> dict[Field, float]:
    """Ratios to the dense network with SDPA, of the records that have a rank."""
    by_field = cells.get((variant, metric), {})
    return {(n, r): record.ratio for (n, r), record in by_field.items() if r is not None and record.ratio}


def _against_dense(cells: Cells, ranked: Sequence[str], mode: str, references: Path | None) -> Picture | None:
    """Figures 3.4 (inference) and 3.7 (training) of the thesis: ratios of speed and memory over length and rank."""
    time, memory, *_ = NAMES[mode]
    speeds, memories = [], []
    for variant in ranked:
        if not (speed := _ratios(cells, variant, time)):
            continue
        name = broken(variant)
        speeds.append(Heat(f"{name}\nspeed", speed))
        memories.append(Heat(f"{name}\nmemory", _ratios(cells, variant, memory)))
        file = published.THESIS.get((variant, mode), "")
        if thesis := published.fields(references, file, "speedup_vs_transformer") if file else {}:
            speeds.append(Heat(f"thesis, {variant}\nspeed", _thinned(thesis, speed)))
            shares = published.fields(references, file, "memory_ratio_vs_transformer")
            saved = {field: 1 / share for field, share in _thinned(shares, speed).items()}
            memories.append(Heat(f"thesis, {variant}\nmemory", saved))
    if not speeds:
        return None
    number = {"inference": "3.4", "training": "3.7"}[mode]
    words = f"{mode.capitalize()}, against the dense network with SDPA (thesis, figure {number})"
    figure = heat_maps(words, [speeds, memories], BETTER)
    caption = f"{words}. Times better: below 1 slower, or more peak memory. One scale for all panels."
    return Picture(f"{mode}", figure, caption, words)


def _thinned(theirs: Mapping[Field, float], ours: Mapping[Field, float]) -> dict[Field, float]:
    """The published fields at lengths and ranks that were measured."""
    lengths, ranks = {n for n, _ in ours}, {r for _, r in ours}
    return {(n, r): value for (n, r), value in theirs.items() if n in lengths and r in ranks}


def _one_against_another(cells: Cells, references: Path | None) -> Picture | None:
    """Figure 3.5 of the thesis: ln(LRT / Linformer) of time and memory, which is below 0 where LRT needs less."""
    rows = []
    for mode in MODES:
        row = []
        for metric, quantity in zip(NAMES[mode][:2], ("speed", "memory"), strict=True):
            lrt, linformer = cells.get(("lrt", metric), {}), cells.get(("linformer", metric), {})
            ours = {(n, r): log(lrt[n, r].value / linformer[n, r].value)
                    for n, r in lrt.keys() & linformer.keys() if r is not None}  # fmt: skip
            word = {"speed": "time", "memory": "memory"}[quantity]
            if ours:
                row.append(Heat(f"{mode}\n{word}", ours))
                column = f"ln_{quantity}_ratio_{mode}"
                theirs = published.fields(references, published.THESIS_LRT_LINFORMER, column)
                if theirs:
                    row.append(Heat(f"thesis, {mode}\n{word}", _thinned(theirs, ours)))
        if row:
            rows.append(row)
    if not rows:
        return None
    words = "ln (LRT / Linformer): below 0 LRT needs less (thesis, figure 3.5)"
    scale = Scale("ln (LRT / Linformer): blue, LRT needs less", ratios=False)
    return Picture("lrt-linformer", heat_maps(words, rows, scale), words, words)


def _parameters(cells: Cells, ranked: Sequence[str]) -> Picture | None:
    """Figure 3.6 of the thesis: parameters against rank, at the least and at the greatest length."""
    dense = cells.get((BASELINE, "parameters"), {})
    lengths = sorted({n for n, _ in dense})
    panels = []
    for length in dict.fromkeys([*lengths[:1], *lengths[-1:]]):
        lines = {}
        for variant in ranked:
            own = cells.get((variant, "parameters"), {})
            points = sorted((r, record.value / 1e6) for (n, r), record in own.items() if n == length and r is not None)
            if points:
                lines[variant] = points
        if every := sorted({r for points in lines.values() for r, _ in points}):
            lines = {BASELINE: [(r, dense[length, None].value / 1e6) for r in every], **lines}
            panels.append(Panel("Rank", "Parameters (M)", lines, doubling=True, title=f"N {length}"))
    if not panels:
        return None
    words = "Parameters of the layers against rank (thesis, figure 3.6)"
    return Picture("parameters", line_panels(words, panels, across=len(panels)), words, words)


def _time(cells: Cells, variants: Sequence[str]) -> Picture | None:
    """Figure 2 of Linformer: time of a token against length, with a row for each mode and a panel for each rank."""
    groups = _groups(cells, variants)
    panels = []
    for mode in MODES:
        metric = NAMES[mode][0]
        row = []
        for rank, group in groups:
            lines = {name: points for name in group if (points := _line(cells.get((name, metric), {}), rank))}
            title = f"{mode.capitalize()}{'' if rank is None else f', rank {rank}'}{_loaded(lines)}"
            row.append(Panel("Length N", "Time of 1,000 tokens (ms)", lines, doubling=True, title=title))
        if any(panel.lines for panel in row):
            panels += row
    if not panels:
        return None
    words = "Time of a token against length (Linformer, figure 2)"
    return Picture("time", line_panels(words, panels, logarithmic=True, across=len(groups)), words, words)


def _groups(cells: Cells, variants: Sequence[str]) -> list[tuple[int | None, list[str]]]:
    """Rank and variants of each panel: the least or the greatest rank, both dense forms, and up to `MOST` variants."""
    of_rank: dict[int | None, list[str]] = {}
    for name in variants:
        if name not in (BASELINE, EAGER):
            by_field = {key: record for mode in MODES for key, record in cells.get((name, NAMES[mode][0]), {}).items()}
            for rank in _ends(by_field):
                of_rank.setdefault(rank, []).append(name)
    dense = [name for name in (BASELINE, EAGER) if name in variants]
    return [
        (rank, [*dense, *names[first : first + MOST]])
        for rank, names in of_rank.items()
        for first in range(0, len(names), MOST)
    ] or [(None, dense)]


def _line(by_field: Mapping[tuple[int, int | None], Record], rank: int | None) -> list[tuple[float, float]]:
    """Milliseconds of 1,000 tokens by length, at this rank, or of a variant without ranks."""
    own = [(n, record) for (n, k), record in by_field.items() if k in (rank, None)]
    return sorted((n, record.value / (n * record.setting["batch"]) * 1e3) for n, record in own)


def _loaded(lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """A note of the lengths at which every line has a peak: no network causes that, other load on the machine does."""
    stands: dict[float, list[bool]] = {}
    for points in lines.values():
        for (_, before), (n, own), (_, after) in zip(points, points[1:], points[2:], strict=False):
            stands.setdefault(n, []).append(own > PEAK * max(before, after))
    shared = [f"{n:g}" for n, peaks in sorted(stands.items()) if len(peaks) > 1 and all(peaks)]
    return f"\nN {', '.join(shared)}: all lines rise, as under other load" if shared else ""


def _ends(by_field: Mapping[tuple[int, int | None], Record]) -> list[int | None]:
    """The least and the greatest rank: with those between, there would be too many lines. None without ranks."""
    ranks = sorted({r for _, r in by_field if r is not None})
    return [None] if by_field and not ranks else list(dict.fromkeys([*ranks[:1], *ranks[-1:]]))


def _saved(cells: Cells, variant: str, references: Path | None) -> Picture | None:
    """Table 3 of Linformer: time saved at equal tokens, over eager and SDPA; memory saved, by the largest batch."""
    eager = cells.get((EAGER, "latency"), {})
    own = cells.get((variant, "latency"), {})
    over = {(n, r): eager[n, None].value / record.value
            for (n, r), record in own.items() if r is not None and (n, None) in eager}  # fmt: skip
    batches = _ratios(cells, variant, "largest_batch_inference")
    heats = [Heat("time saved\nover eager", over), Heat("time saved\nover SDPA", _ratios(cells, variant, "latency")),
             Heat("larger batch\nthan SDPA", batches)]  # fmt: skip
    for column, words in (("time_saved_x", "paper\ntime saved"), ("memory_saved_x", "paper\nmemory saved")):
        theirs = published.fields(references, published.SAVED[variant], column, "projected_dim")
        heats.append(Heat(words, _thinned(theirs, over)))
    heats = [heat for heat in heats if heat.values]
    if not heats:
        return None
    words = f"{variant.capitalize()}, inference: times as fast, and times as large a batch (Linformer, table 3)"
    figure = heat_maps(words, [heats], Scale("times better (blue)"), across="Projected length k")
    return Picture("saved", figure, words, words)
