"""What a little healing brings back of a sentence encoder, by what was changed: layers, neurons, rank.

    python benchmarks/healed_for_short.py [--quick] [--json results/healed_for_short.jsonl]

Recipes of MiniLM-L6 as they are made, and healed for 100 and 300 steps, the hurdles of a search, on sentences of five
data sets without labels. Each is judged by its agreement with the model as it is, as a search judges: the correlation
of its similarities with that model's, on 1,000 training pairs of STS-B, whose scores are not looked at, and whose
sentences are not among those that heal. About three minutes a recipe on two cores. With --json what is in the file is
not repeated.

Bar: behind 300 steps evenly spread layers agree more than those that were chosen by what they do to the states.
"""

import copy

from _corpus import SOURCES, corpus, plain
from _harness import Benchmark, Option, Run, data, yes
from compress_minilm import LENGTH, minilm
from pair_agreement import judged_by
from rich.table import Table

from greenformers import compress
from greenformers.changes import Change, Heal, Layers, LowRank, Prune
from greenformers.compress.quality import as_ranked_by, judge
from greenformers.data._reader import Reader
from greenformers.search.healing import HURDLES

RECIPES: dict[str, list[Change]] = {
    "5 layers": [Layers(5)], "5 layers by influence": [Layers(5, by="influence")],
    "4 layers": [Layers(4)], "4 layers by influence": [Layers(4, by="influence")],
    "3 layers": [Layers(3)], "3 layers by influence": [Layers(3, by="influence")],
    "prune 0.6": [Prune(0.6)], "prune 0.4": [Prune(0.4)], "low rank 0.6": [LowRank(keep=0.6)],
    "4 layers, prune 0.6": [Layers(4), Prune(0.6)],
    "4 layers by influence, prune 0.6": [Layers(4, by="influence"), Prune(0.6)],
}  # fmt: skip
SENTENCES = 20_000

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="two recipes, healed for 2 steps; the figures mean nothing",
    options=(
        data("--pairs", "stsb_open", "STS-B"),
        *SOURCES,
        Option("--recipes", 'these alone, with semicolons: "4 layers;prune 0.6", say', default=""),
    ),
    json="file the records are added to, and known ones are read from",
    threads=2,
)


def main(run: Run) -> bool:
    given = run.given
    names = list(RECIPES)[2:4] if run.quick else [*filter(None, given.recipes.split(";"))] or list(RECIPES)
    if unknown := [name for name in names if name not in RECIPES]:
        run.refuse(f"--recipes must be of {', '.join(RECIPES)}; got {unknown[0]!r}")
    dense, tokenizer = minilm(run)
    judging = judged_by(given.pairs)[0]
    ranked = as_ranked_by(dense, judging, Reader.of(dense, tokenizer, LENGTH))
    judged = {plain(line) for line in judging.lines}
    lines = corpus(given.pairs, given.wikitext, given.reviews, given.phrases, given.captions)
    texts = [line for line in lines if plain(line) not in judged][:SENTENCES]
    hurdles = (2,) if run.quick else HURDLES
    table = Table("recipe", *("as made" if not steps else f"{steps} steps, %" for steps in (0, *hurdles)))
    agreement = dict[tuple[str, int], float]()
    for name in names:
        for steps in (0, *hurdles):
            setting = {"judged": "agrees", "steps": steps}
            if known := run.remembered("quality_share", name, setting):
                agreement[name, steps] = known.value
                continue
            small = copy.deepcopy(dense)
            recipe = RECIPES[name]
            if steps:
                suited = Heal.suited(texts=SENTENCES, before=recipe, following=())
                recipe = [*recipe, suited.but(steps=steps)]
            compress(small, recipe, texts=texts, tokenizer=tokenizer, length=LENGTH)
            value = judge({"small": small}, ranked, Reader.of(dense, tokenizer, LENGTH))["small"]["spearman"][0]
            agreement[name, steps] = value
            run.write([run.record("quality_share", value, name, setting)])
            print(f"{name}, {steps} steps: {value:.2f} %", flush=True)
        table.add_row(name, *(f"{agreement[name, steps]:.2f}" for steps in (0, *hurdles)))
    run.show(table)
    both = [name for name in names if f"{name} by influence" in names]
    met = bool(both) and all(
        agreement[name, hurdles[-1]] > agreement[f"{name} by influence", hurdles[-1]] for name in both
    )
    print(f"evenly spread layers agree more behind {hurdles[-1]} steps: {yes(met)}")
    return run.quick or met


if __name__ == "__main__":
    BENCHMARK.run(main)
