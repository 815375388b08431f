"""Chapter 5 of Cahyawijaya 2021 at small size: real APOE genotypes with a made-up disease, and synthetic people.

Each training has a run folder, so that the demonstration can be stopped and resumed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from greenformers.genome import baselines, corpus, encode, explain, judge, simulate, studies, variants
from greenformers.genome.cohort import Cohort
from greenformers.genome.files import GenomeError, Region
from greenformers.genome.finetune import finetune
from greenformers.genome.people import People
from greenformers.genome.reference import Reference
from greenformers.genome.settings import Finetuning, Pretraining
from greenformers.genome.simulate import Effect
from greenformers.genome.tokenizer import base_tokens, save, subwords
from greenformers.measure.record import Record
from greenformers.train import run

APOE = {"rs429358": Effect(45_411_941, "C", 4.0), "rs7412": Effect(45_412_079, "T", 0.6)}
"""Effect of each copy on the odds of the made-up disease, GRCh37."""

SEED = 1
"""Seed of the made-up diseases. In 93 % of 200 draws the 95 % intervals of APOE's odds ratios hold the planted values;
in the draw of seed 0 they do not."""

PAIR = (0.28, 0.33)
"""Frequencies of two sites that interact: half of the people have an allele, so that neither site predicts alone."""

COMMON = (0.3, 0.7)
GENE = Region("", 500_000, 503_611)
"""A region as long as the gene of Cahyawijaya 2021, in the sequence of chr20 for which synthetic people are made."""
MARGINS = (0, 1000, 3000, 5000)
CAUSES = ((0, 1.6), (-4_200, 6.0), (3_800, 6.0))
"""Causes in the study of surroundings: distance of a common site from the gene, and odds ratio of a copy."""

NETWORK = Finetuning(
    hidden=64, layers=2, heads=4, feed_forward=128, dropout=0.0, k=64, length=512, residual="pre", pooling="mean",
    batch=32, learning_rate=1e-3, decay=0.9995, warmup=0.02,
)  # fmt: skip


SHARED = (
    "hidden", "layers", "heads", "feed_forward", "dropout", "k", "length", "residual", "pooling", "tokens", "sequences",
)  # fmt: skip
"""Settings that pre-training and fine-tuning have in common."""


def pretraining_of(settings: Finetuning) -> Pretraining:
    """Settings of a short pre-training of the network that is fine-tuned."""
    same = {name: getattr(settings, name) for name in SHARED}
    return Pretraining(**same, batch=16, steps=200, learning_rate=1e-3, decay=0.999, sentences=3000)


class Files(NamedTuple):
    """Real data of the demonstration.

    Attributes:
        apoe: VCF of the 1000 Genomes people at APOE's exon 4, GRCh37.
        exon: Reference of `apoe`.
        sites: VCF with the frequencies of sites.
        sequence: Reference of `sites`.
    """

    apoe: Path
    exon: Path
    sites: Path
    sequence: Path

    @classmethod
    def under(cls, data: Path) -> Files:
        """Find the files in a folder of data sets.

        Raises:
            GenomeError: A file is missing.
        """
        paths = []
        for pattern in ("apoe_1000g/*.vcf.gz", "apoe_1000g/apoe_exon4*.fa", "chr20_1mb/*.vcf.gz", "chr20_1mb/*.fa.gz"):
            matching = sorted(data.glob(f"genomics_{pattern}"))
            if not matching:
                raise GenomeError(f"{data}: has no genomics_{pattern}")
            paths.append(matching[0])
        return cls(*paths)


class Part(NamedTuple):
    """The results of one part of the demonstration.

    Attributes:
        title: Title of the part.
        records: Records of all models, see `judge.records`.
        odds: Odds ratios of logistic regression, by name.
        explained: Explanation of the network of APOE.
    """

    title: str
    records: list[Record]
    odds: dict[str, baselines.Odds]
    explained: explain.Explained | None = None


@dataclass(frozen=True)
class Demo:
    """The parts of the demonstration, each in a folder of its own.

    Attributes:
        files: Real data.
        out: Folder of the parts.
        console: Console that shows the progress.
        splits: Number of draws of people.
        people: Number of synthetic people; half as many in the study of surroundings.
        margins: Additional positions on each side of the gene, in the study of surroundings.
        draws: Number of draws of people in the study of surroundings.
    """

    files: Files
    out: Path
    console: Console
    splits: int = 5
    people: int = 2000
    margins: tuple[int, ...] = MARGINS
    draws: int = 1

    def apoe(self) -> Part:
        """Real genotypes: odds ratios, pre-training, the network beside logistic regression, its explanation."""
        reference, folder = Reference(self.files.exon), self.out / "apoe"
        region = reference.region(None)
        called = variants.read(self.files.apoe, reference, region)
        odds = simulate.log_odds(called, region, list(APOE.values()))
        defaults = self._cohort(
            folder, self.files.apoe, reference, region, dict(zip(called.people, odds, strict=True)), 200
        )
        settings = replace(defaults, epochs=5)
        run.ensure(folder / "before", pretraining_of(settings), self.console)
        settings = replace(settings, init=str(folder / "before"), tokens=None)
        people = People.load(Path(settings.sequences))
        positions = {effect.position: name for name, effect in APOE.items()}
        ratios = baselines.odds_ratios(*baselines.at_positions(people, list(positions)), people.labels)
        records = self._judged(settings, folder, list(positions))
        explanation = explain.explained(
            folder / "risk" / "split0", people=200, steps=32, names=self.files.apoe, progress=lambda _: None
        )
        title = "APOE, real genotypes, made-up disease"
        return Part(title, records, {positions[ratio.position]: ratio for ratio in ratios}, explanation)

    def pair(self, *, effect: bool) -> Part:
        """Synthetic people: a disease of those who have just one of two alleles, or a disease by chance."""
        settings, folder = self._pair(effect=effect)
        settings = replace(settings, epochs=15 if effect else 3, patience=15)
        title = "Two sites that interact, synthetic people" if effect else "No effect, synthetic people"
        return Part(title, self._judged(settings, folder, []), {})

    def steps(self, snapshots: Sequence[int]) -> Part:
        """The synthetic people of two sites that interact, after ever more steps of pre-training. Table 5.2.

        Args:
            snapshots: Steps of pre-training, the last of which is its end.
        """
        settings, folder = self._pair(effect=True)
        *early, last = sorted(snapshots)
        before = replace(pretraining_of(settings), steps=last, snapshots=",".join(map(str, early)) or None)
        run.ensure(folder / "before", before, self.console)
        settings = replace(settings, init=str(folder / "before"), tokens=None, epochs=5, patience=5)
        records = studies.pretraining(settings, self.splits, folder / "steps", self.console)
        return Part("Two sites that interact, after pre-training", records, {})

    def _pair(self, *, effect: bool) -> tuple[Finetuning, Path]:
        """Settings with the synthetic people of two sites, and their folder."""
        reference, folder = Reference(self.files.sequence), self.out / ("pair" if effect else "nothing")
        first, second = self._near(reference)
        region = Region(reference.regions[0].contig, first - 201, second + 200)
        genotypes = self._people(folder, reference, region, self.people)
        called = variants.read(genotypes, reference, region)
        letters = [reference.fetch(Region(region.contig, site - 1, site)) for site in (first, second)]
        odds: dict[str, float | None] = {}
        for name, both in zip(called.people, simulate.bases_at(called, region, [first, second]), strict=True):
            has_first, has_second = (any(side[site] != letters[site] for side in both) for site in (0, 1))
            odds[name] = math.log(9) * (1 if has_first != has_second else -1) * effect
        return self._cohort(folder, genotypes, reference, region, odds, 200), folder

    def surroundings(self) -> Part:
        """Synthetic people with causes in a gene and 4 kb from it: ever larger surroundings of the gene. Figure 5.5."""
        reference, folder = Reference(self.files.sequence), self.out / "surroundings"
        contig, most = reference.regions[0].contig, max(self.margins)
        gene, region = (Region(contig, GENE.start - margin, GENE.end + margin) for margin in (0, most))
        genotypes = self._people(folder, reference, region, self.people // 2)
        called = variants.read(genotypes, reference, region)
        causes = self._causes(reference, region)
        odds = dict(zip(called.people, simulate.log_odds(called, region, causes), strict=True))
        settings = self._cohort(folder, genotypes, reference, region, odds, 10_000)
        length = max(4096, (region.end - region.start) // 6)  # of 33,611 positions people have up to 5,196 tokens
        settings = replace(settings, region=str(gene), length=length, epochs=8, patience=5)
        records = studies.surroundings(settings, self.margins, self.draws, folder / "risk", self.console)
        return Part("A gene and what is around it, synthetic people", records, {})

    def _judged(self, settings: Finetuning, folder: Path, positions: Sequence[int]) -> list[Record]:
        people = People.load(Path(settings.sequences))
        chances = finetune(settings, folder / "risk", self.splits, self.console)
        return judge.records(settings, chances, judge.features(people, positions), people)

    def _people(self, folder: Path, reference: Reference, region: Region, count: int) -> Path:
        genotypes = folder / "genotypes.vcf.gz"
        folder.mkdir(parents=True, exist_ok=True)
        if not genotypes.exists():
            for _ in simulate.synthetic(self.files.sites, reference, region, count, genotypes, 0):
                pass
        elif (there := len(variants.people(genotypes))) != count:
            raise ValueError(f"{folder} holds {there:,} people of another --people, where {count:,} are asked for")
        return genotypes

    def _cohort(
        self,
        folder: Path,
        genotypes: Path,
        reference: Reference,
        region: Region,
        odds: dict[str, float | None],
        tokens: int,
    ) -> Finetuning:
        """Settings with phenotypes, sequences and tokens of a part, which are made if they are not there."""
        folder.mkdir(parents=True, exist_ok=True)
        sequences, tokens_folder = folder / "people.tsv", folder / "tokens"
        if not sequences.exists():
            simulate.write_phenotypes(folder / "cohort.tsv", dict(odds), 0.5, SEED, "greenformers genome demo")
            phenotypes = {person.name: person.phenotype for person in Cohort.load(folder / "cohort.tsv").people}
            sources = [encode.Source(genotypes, tuple(phenotypes))]
            encoding = encode.Encoding(reference.path, region)
            for _ in encode.encode(sources, encoding, sequences, phenotypes=phenotypes, resume=True):
                pass
        if not (tokens_folder / "tokenizer.json").exists():
            sentences = corpus.sentences_of(sequences, 0, count=3000 if tokens < 1000 else 20_000)
            save(subwords(sentences, size=tokens, characters=base_tokens("iupac"), max_length=512), tokens_folder)
        return replace(NETWORK, sequences=str(sequences), tokens=str(tokens_folder))

    def _near(self, reference: Reference) -> tuple[int, int]:
        """Positions of the first two sites with frequencies in `PAIR` that are 300 to 600 apart."""
        places = [site.position for site in self._single(reference, reference.region(None), PAIR)]
        for before, position in itertools.pairwise(places):
            if 300 <= position - before <= 600:
                return before, position
        raise GenomeError(f"{self.files.sites}: has no two sites with frequencies in {PAIR} near each other")

    def _causes(self, reference: Reference, region: Region) -> list[Effect]:
        """The common sites nearest to the places of `CAUSES`."""
        common = self._single(reference, region, COMMON)
        if not common:
            raise GenomeError(f"{self.files.sites}: has no site with a frequency in {COMMON} at {region}")
        causes = []
        for away, ratio in CAUSES:
            target = (GENE.start + GENE.end) // 2 if away == 0 else (GENE.start if away < 0 else GENE.end) + away
            nearest = min(common, key=lambda site: abs(site.position - target))
            causes.append(replace(nearest, odds_ratio=ratio))
        return causes

    def _single(self, reference: Reference, region: Region, between: tuple[float, float]) -> list[Effect]:
        """Sites of one base and one alternative whose frequency is within bounds."""
        effects = []
        for start, ref, alts, about in variants.sites(self.files.sites, region, reference.fetch(region)):
            frequencies = corpus.frequency(about, len(alts), self.files.sites)
            single = len(ref) == len(alts[0]) == len(alts) == 1
            if single and frequencies and between[0] <= frequencies[0] <= between[1]:
                effects.append(Effect(region.start + start + 1, alts[0], 1.0))
        return effects
