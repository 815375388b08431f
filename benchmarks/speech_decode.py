"""Writing speech down at the thesis' size: the dense networks of table 4.2 beside the low-rank ones, with a beam of 8.

    python benchmarks/speech_decode.py [--quick] [--json results/speech_decode.jsonl]

16 utterances of 5.5 s, 30 characters each out of 4,230, two threads; weights are random, so all beams go on to the
end. "All" is the time from spectrograms to text, "search" that of the decoder alone. Thesis, table 4.3: 1.15 to 1.23
times faster on a CPU than the large dense network; goal 1.5. Without a cache every step computes all characters
before it again; bar: 5 times slower. "With CTC" is the search of the same network with a share of CTC in the score.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from _harness import Benchmark, Run
from rich.table import Table

from greenformers.measure.latency import Timing
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record
from greenformers.speech.config import SpeechConfig
from greenformers.speech.model import GreenformerForSpeechSeq2Seq
from greenformers.speech.search import Search, beam_search, written

# AiShell-1: characters of its transcripts, and the three marks.
CHARACTERS = 4230 + 3
UTTERANCES, FRAMES, WRITTEN, WIDTH = 16, 550, 30, 8
LARGE, SAME = "Transformer (large)", "LRT's shape, dense"
# Published parameters in millions (table 4.2), and sizes. Those of the dense networks are not printed there: these
# are the widths that come nearest.
NETWORKS: dict[str, tuple[float | None, dict[str, Any]]] = {
    LARGE: (25.1, {"hidden_size": 512, "intermediate_size": 1152}),
    "Transformer (medium)": (12.7, {"hidden_size": 320, "intermediate_size": 1024}),
    "Transformer (small)": (8.7, {"hidden_size": 256, "intermediate_size": 768}),
    "LRT r=100": (12.7, {"rank": 100, "input_rank": 100}),
    "LRT r=75": (10.7, {"rank": 75, "input_rank": 75}),
    "LRT r=50": (8.7, {"rank": 50, "input_rank": 50}),
    SAME: (None, {}),
}
UNCACHED, JOINT = "without cache", "with CTC"
CTC_WEIGHT = 0.3
FASTER, CACHED_FASTER = 1.15, 5.0

BENCHMARK = Benchmark(__file__, __doc__, quick="8 characters, 2 rounds in place of 7", threads=2)


def main(run: Run) -> bool:
    characters = 8 if run.quick else WRITTEN
    models = {name: network(sizes) for name, (_, sizes) in NETWORKS.items()}
    timed: dict[str, Callable[[], Any]] = {}
    for name, model in models.items():
        timed |= {" / ".join(key): call for key, call in calls(name, model, characters).items()}
    times = run.times(timed, repeats=7, quick=2)
    run.show(shown(models, times))
    run.write(records_of(run, models, times, characters))
    ratio = {name: _times(times, LARGE, name, "all") for name in models}
    slower = [name for name in models if name.startswith("LRT r") and ratio[name] < FASTER]
    cached = times[f"{LARGE} / {UNCACHED}"].median / times[f"{LARGE} / search"].median
    print(f"cached {cached:.1f} times faster than uncached (bar {CACHED_FASTER:g})")
    joint = times[f"{LARGE} / {JOINT}"].median / times[f"{LARGE} / search"].median
    print(f"with CTC the search takes {joint:.2f} times as long")
    print(f"below {FASTER}: {', '.join(slower) or 'none'}")
    return not slower and cached >= CACHED_FASTER


def network(sizes: dict[str, Any]) -> GreenformerForSpeechSeq2Seq:
    torch.manual_seed(0)
    marks: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 2}
    return GreenformerForSpeechSeq2Seq(SpeechConfig(vocab_size=CHARACTERS, **marks, **sizes)).eval()


def calls(name: str, model: GreenformerForSpeechSeq2Seq, characters: int) -> dict[tuple[str, str], Callable[[], Any]]:
    """What is timed of a network."""
    features = torch.randn(UTTERANCES, FRAMES, model.config.spectrogram().bins, generator=torch.manual_seed(1))
    search = Search(width=WIDTH, longest=characters, shortest=characters)
    with torch.inference_mode():
        memory = model.encoder(features, return_dict=True).last_hidden_state
    passes: dict[tuple[str, str], Callable[[], Any]] = {
        (name, "all"): lambda: beam_search(model, features, search=search),
        (name, "search"): lambda: written(model, memory, search=search),
    }
    if name == LARGE:
        slow = replace(search, cached=False)
        passes[name, UNCACHED] = lambda: written(model, memory, search=slow)
        joint = network(NETWORKS[LARGE][1] | {"ctc_weight": CTC_WEIGHT})
        passes[name, JOINT] = lambda: written(joint, memory, search=search)
    return passes


def _times(times: dict[str, Timing], to: str, name: str, part: str) -> float:
    """How many times faster: the median of the rounds' ratios."""
    pairs = zip(times[f"{to} / {part}"].samples, times[f"{name} / {part}"].samples, strict=True)
    return float(torch.tensor([a / b for a, b in pairs]).median())


def shown(models: dict[str, GreenformerForSpeechSeq2Seq], times: dict[str, Timing]) -> Table:
    table = Table("", "parameters", "published", "compression", "all, ms", "speed-up", "search, ms", "speed-up")
    size = parameters(models[LARGE])
    for name, model in models.items():
        count, published = parameters(model), NETWORKS[name][0]
        cells = [
            f"{count / 1e6:.1f} M",
            "" if published is None else f"{published} M",
            f"{100 - 100 * count / size:.1f} %",
        ]
        for part in ("all", "search"):
            cells += [f"{1000 * times[f'{name} / {part}'].median:.0f}", f"{_times(times, LARGE, name, part):.2f}x"]
        table.add_row(name, *cells)
    return table


def records_of(
    run: Run, models: dict[str, GreenformerForSpeechSeq2Seq], times: dict[str, Timing], characters: int
) -> list[Record]:
    """Times and parameters, with their ratios to the large dense network."""
    records = []
    for key, timing in times.items():
        name, part = key.split(" / ")
        setting = {"part": part, "batch": UTTERANCES, "frames": FRAMES, "characters": characters, "width": WIDTH}
        record = run.record("latency", timing, name, setting)
        if part != UNCACHED and name != LARGE:
            record = replace(record, ratio=_times(times, LARGE, name, part), to=LARGE)
        records.append(record)
    for name, model in models.items():
        count = parameters(model)
        record = run.record("parameters", count, name, source="counted")
        if name != LARGE:
            record = replace(record, ratio=parameters(models[LARGE]) / count, to=LARGE)
        records.append(record)
    return records


if __name__ == "__main__":
    BENCHMARK.run(main)
