"""The fine-tuned network beside what it must beat, on the same draws of people. Thesis, table 5.2."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from greenformers.genome import baselines
from greenformers.genome.people import People
from greenformers.genome.risk import summary
from greenformers.genome.settings import Finetuning
from greenformers.measure.record import METRICS, Record

KMER = 6


def records(settings: Finetuning, found: list[dict[str, float]], known: Sequence[int] = ()) -> list[Record]:
    """Means over the draws, standard deviations as spreads; every model on the same people.

    Args:
        settings: of the network.
        found: its scores on the test people of each draw.
        known: positions of variants for a baseline of their own.

    Raises:
        ValueError: nobody has a variant at them.
    """
    people = People.load(Path(settings.sequences), settings.region)
    features = {}
    if known:
        features["logistic regression, known variants"] = baselines.at_positions(people, known)[0]
    features["logistic regression, all variants"] = people.counts()[0].astype(float)
    texts = [people.text(number) for number in range(len(people.names))]
    features[f"logistic regression, {KMER}-mers"] = baselines.kmer_counts(texts, KMER)
    models = {settings.variant: found}
    for name, values in features.items():
        models[name] = [
            baselines.regression(values, people.labels, people.splits(draw, settings.valid_share, settings.test_share))
            for draw in range(len(found))
        ]
    setting = {"region": str(people.region), "people": len(people.names), "draws": len(found)}
    made = []
    for name, scores in models.items():
        for metric in ("auc", "f1"):
            mean, deviation = summary(scores, metric)
            made.append(Record("genome_risk", name, setting, metric, mean, METRICS[metric].unit, spread=deviation))
    return made


def table(made: Sequence[Record]) -> Table:
    """A row a model."""
    shown = Table("", "AUC (%)", "F1 (%)", title=", ".join(f"{key} {value}" for key, value in made[0].setting.items()))
    for name in dict.fromkeys(record.variant for record in made):
        own = {record.metric: record for record in made if record.variant == name}
        shown.add_row(name, *(f"{own[one].value:.2f} (s.d. {own[one].spread:.2f})" for one in ("auc", "f1")))
    return shown
