"""By what a search judges an encoder: agreement with the model as it is, beside the scores of as many pairs.

    python benchmarks/pair_agreement.py [--quick] [--small FOLDER,FOLDER] [--json results/pair_agreement.jsonl]

Recipes of MiniLM-L6 as they are made, and healed ones in the folders that are named. Each is judged by 1,000 training
pairs of STS-B as the search sees them: by the share of Spearman's correlation with their scores that it keeps, and by
the correlation of its similarities with those of the model as it is. Beside it the share that it keeps on the 1,000
pairs that the search does not see and on the 625 dev pairs together, which is to be foreseen.

Bar: agreement is nearer to that share in the mean than the share on the 1,000 pairs is.
"""

import copy
from pathlib import Path
from statistics import mean

from _harness import Benchmark, Option, Run, data, yes
from compress_minilm import LENGTH, minilm, pairs, sentences
from rich.table import Table
from transformers import PreTrainedModel

from greenformers import compress
from greenformers.changes import Int8, Layers, LowRank, Prune
from greenformers.checkpoint.pretrained import pretrained
from greenformers.compress.parts import split
from greenformers.compress.quality import as_ranked_by, judge
from greenformers.data._examples import halves
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts, batches

RECIPES = {
    "int8": [Int8()], "prune 0.6": [Prune(0.6)], "prune 0.4": [Prune(0.4)], "prune 0.3": [Prune(0.3)],
    "low rank 0.6": [LowRank(keep=0.6)], "low rank 0.4": [LowRank(keep=0.4)],
    "5 layers": [Layers(5, by="influence")], "4 layers": [Layers(4, by="influence")],
}  # fmt: skip
CALIBRATION = 256

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="two recipes; the figures mean little",
    options=(
        data("--texts", "wikitext2", "WikiText-2"),
        data("--pairs", "stsb_open", "STS-B"),
        Option("--small", "folders of recipes that were healed, with commas", default=""),
    ),
)


def main(run: Run) -> bool:
    given = run.given
    dense, tokenizer = minilm(run)
    reader = Reader.of(dense, tokenizer, LENGTH)
    (seen, unseen), dev = judged_by(given.pairs), pairs(given.pairs, "valid")
    labels = [*(unseen.labels or ()), *(dev.labels or ())]
    others = Texts("others", [*unseen.segments, *dev.segments], labels, label_kind="score")
    calibration = batches(sentences(given.texts, CALIBRATION), tokenizer, "encoder", LENGTH, 64)
    models: dict[str, PreTrainedModel] = {"dense": dense}
    for name, changes in list(RECIPES.items())[: 2 if run.quick else None]:
        models[name] = copy.deepcopy(dense)
        compress(models[name], changes, calibration=calibration)
    models |= {Path(folder).name: pretrained(folder)[0] for folder in given.small.split(",") if folder}
    ranked = as_ranked_by(dense, seen, reader)
    by = {
        name: judge(models, texts, reader) for name, texts in (("seen", seen), ("agrees", ranked), ("others", others))
    }
    table = Table("recipe", "agreement, %", "kept, on as many pairs, %", "kept, on 1,625 others, %", "difference")
    records, missed = [], []
    for name in list(models)[1:]:
        shares = {
            which: 100 * scores[name]["spearman"][0] / scores["dense"]["spearman"][0] for which, scores in by.items()
        }
        low, high = by["others"][name]["spearman"][1] or (0.0, 0.0)
        table.add_row(
            name,
            f"{shares['agrees']:.2f}",
            f"{shares['seen']:.2f}",
            f"{shares['others']:.2f}",
            f"{low:+.2f} to {high:+.2f}",
        )
        missed.append([abs(shares[which] - shares["others"]) for which in ("agrees", "seen")])
        for which, value in shares.items():
            records.append(run.record("quality_share", value, name, {"judged": which}))
    run.show(table)
    run.write(records)
    agreement, scores_of_as_many = (mean(each) for each in zip(*missed, strict=True))
    met = agreement < scores_of_as_many
    print(f"away in the mean: agreement {agreement:.2f}, the scores of as many pairs {scores_of_as_many:.2f} points")
    print(f"agreement is nearer: {yes(met)}")
    return run.quick or met


def judged_by(folder: Path) -> tuple[Texts, Texts]:
    """The training pairs that a search judges by, and those that judge what came of it."""
    judging = split(pairs(folder, "train"), ["judging", "calibration"], 0, CALIBRATION)["judging"]
    seen, unseen = halves(judging, len(judging))
    assert isinstance(seen, Texts)
    assert isinstance(unseen, Texts)
    return seen, unseen


if __name__ == "__main__":
    BENCHMARK.run(main)
