"""The figures of the efficiency study from records of a grid: thesis 3.4 to 3.7, Linformer table 3, survey table II."""

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
"""Variants in a panel of lines, beside the dense network's two."""

PEAK = 1.15
"""How far above its neighbours a time is a peak."""

Cells = Mapping[tuple[str, str], Mapping[tuple[int, int | None], Record]]
"""(variant, metric) to (length, rank) to a record."""


def write(records: Iterable[Record], folder: Path, references: Path | None = None) -> Path:
    """Write the page and its pictures; the same records give the same bytes.

    Args:
        records: of `bench`; others are left out. Where a cell was measured several times, the last counts.
        folder: for them.
        references: folder with the published figures.

    Raises:
        ValueError: no records of a grid.
        OSError: the folder cannot be written.
    """
    found = [record for record in records if record.benchmark == "bench"]
    if not found:
        raise ValueError("no records of a grid to draw")
    lead = "Each variant beside the dense network with SDPA, measured in the same interleaved run."
    return page.write(found, folder, "The efficiency study", drawn=pictures(found, references), lead=lead)


def pictures(records: Sequence[Record], references: Path | None = None) -> list[Picture]:
    """Every figure that these records allow."""
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
    """How many times less than the dense network with SDPA, of cells with a rank."""
    found = cells.get((variant, metric), {})
    return {(n, r): record.ratio for (n, r), record in found.items() if r is not None and record.ratio}


def _against_dense(cells: Cells, ranked: Sequence[str], mode: str, references: Path | None) -> Picture | None:
    """Figures 3.4 (inference) and 3.7 (training): times better in speed and in memory, over length and rank."""
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
    """Figure 3.5: the natural logarithm of what LRT needs over what Linformer needs; below 0 LRT is ahead."""
    rows = []
    for mode in MODES:
        row = []
        for metric, what in zip(NAMES[mode][:2], ("speed", "memory"), strict=True):
            lrt, linformer = cells.get(("lrt", metric), {}), cells.get(("linformer", metric), {})
            ours = {(n, r): log(lrt[n, r].value / linformer[n, r].value)
                    for n, r in lrt.keys() & linformer.keys() if r is not None}  # fmt: skip
            word = {"speed": "time", "memory": "memory"}[what]
            if ours:
                row.append(Heat(f"{mode}\n{word}", ours))
                theirs = published.fields(references, "thesis_fig3_5_lrt_vs_linformer.csv", f"ln_{what}_ratio_{mode}")
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
    """Figure 3.6: parameters against rank, at the greatest length."""
    dense = cells.get((BASELINE, "parameters"), {})
    if not dense:
        return None
    length = max(n for n, _ in dense)
    lines = {}
    for variant in ranked:
        found = cells.get((variant, "parameters"), {})
        points = sorted((r, record.value / 1e6) for (n, r), record in found.items() if n == length and r is not None)
        if points:
            lines[variant] = points
    every = sorted({r for points in lines.values() for r, _ in points})
    if not every:
        return None
    lines = {BASELINE: [(r, dense[length, None].value / 1e6) for r in every], **lines}
    words = f"Parameters of the layers against rank, N {length} (thesis, figure 3.6)"
    figure = line_panels(words, [Panel("Rank", "Parameters (M)", lines, doubling=True)])
    return Picture("parameters", figure, words, words)


def _time(cells: Cells, variants: Sequence[str]) -> Picture | None:
    """Linformer, figure 2: time of a token against length; a row a mode, a panel a rank."""
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
    """What is drawn in one panel: a rank, the least or the greatest, and both dense forms beside `MOST` variants."""
    of_rank: dict[int | None, list[str]] = {}
    for name in variants:
        if name not in (BASELINE, EAGER):
            found = {key: record for mode in MODES for key, record in cells.get((name, NAMES[mode][0]), {}).items()}
            for rank in _ends(found):
                of_rank.setdefault(rank, []).append(name)
    dense = [name for name in (BASELINE, EAGER) if name in variants]
    return [
        (rank, [*dense, *names[first : first + MOST]])
        for rank, names in of_rank.items()
        for first in range(0, len(names), MOST)
    ] or [(None, dense)]


def _line(found: Mapping[tuple[int, int | None], Record], rank: int | None) -> list[tuple[float, float]]:
    """Milliseconds of 1,000 tokens by length, at a rank, or of what has none."""
    return sorted(
        (n, record.value / (n * record.setting["batch"]) * 1e3) for (n, k), record in found.items() if k in (rank, None)
    )


def _loaded(lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Lengths at which every line stands out above both its neighbours: no network does that, other load does."""
    stands: dict[float, list[bool]] = {}
    for points in lines.values():
        for (_, before), (n, own), (_, after) in zip(points, points[1:], points[2:], strict=False):
            stands.setdefault(n, []).append(own > PEAK * max(before, after))
    shared = [f"{n:g}" for n, peaks in sorted(stands.items()) if len(peaks) > 1 and all(peaks)]
    return f"\nN {', '.join(shared)}: all lines rise, as under other load" if shared else ""


def _ends(found: Mapping[tuple[int, int | None], Record]) -> list[int | None]:
    """The least and the greatest rank: with those between, lines are too many."""
    ranks = sorted({r for _, r in found if r is not None})
    return [None] if found and not ranks else list(dict.fromkeys([*ranks[:1], *ranks[-1:]]))


def _saved(cells: Cells, variant: str, references: Path | None) -> Picture | None:
    """Linformer, table 3: time saved at equal tokens, over eager and SDPA; memory saved, by the largest batch."""
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
