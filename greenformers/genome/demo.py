"""Chapter 5 of the thesis end to end, at small size: real APOE genotypes with a made-up disease, and synthetic people.

Everything that is trained is a run folder, so that the work goes on where it was stopped.
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
from greenformers.genome.tokenizer import base_tokens, subwords
from greenformers.measure.record import Record
from greenformers.train import run

APOE = {"rs429358": Effect(45_411_941, "C", 4.0), "rs7412": Effect(45_412_079, "T", 0.6)}
"""What each copy does to the odds of the made-up disease, GRCh37."""

SEED = 1
"""Of the made-up diseases. Of 200 draws the 95 % intervals of APOE's odds ratios hold what was planted in 93 %; that of
seed 0 is one of those that do not."""

PAIR = (0.28, 0.33)
"""Frequencies of two sites that are to interact: half of the people have an allele then, so neither tells anything."""

COMMON = (0.3, 0.7)
GENE = Region("", 500_000, 503_611)
"""As long as the thesis' gene; of the sequence of chr20, where synthetic people are made."""
MARGINS = (0, 1000, 3000, 5000)
CAUSES = ((0, 1.6), (-4_200, 3.0), (3_800, 3.0))
"""Of the study of surroundings: how far from the gene a common site is looked for, and what a copy does to the odds."""

NETWORK = Finetuning(
    hidden=64, layers=2, heads=4, feed_forward=128, dropout=0.0, k=64, length=512, residual="pre", pooling="mean",
    batch=32, learning_rate=1e-3, decay=0.9995, warmup=0.02,
)  # fmt: skip


class Files(NamedTuple):
    """Real data the demonstration stands on.

    Attributes:
        apoe: VCF of the 1000 Genomes people at APOE's exon 4, GRCh37.
        exon: its reference.
        sites: VCF with the frequencies of sites.
        sequence: their reference.
    """

    apoe: Path
    exon: Path
    sites: Path
    sequence: Path

    @classmethod
    def under(cls, data: Path) -> Files:
        """In a folder of data sets.

        Raises:
            GenomeError: a file is missing.
        """
        found = []
        for pattern in ("apoe_1000g/*.vcf.gz", "apoe_1000g/apoe_exon4*.fa", "chr20_1mb/*.vcf.gz", "chr20_1mb/*.fa.gz"):
            matching = sorted(data.glob(f"genomics_{pattern}"))
            if not matching:
                raise GenomeError(f"{data}: has no genomics_{pattern}")
            found.append(matching[0])
        return cls(*found)


class Part(NamedTuple):
    """What one part of the demonstration found.

    Attributes:
        title: of the part.
        records: of `judge.records`, of all models.
        odds: odds ratios that logistic regression found, by name.
        explained: of APOE, what the network looks at.
    """

    title: str
    records: list[Record]
    odds: dict[str, baselines.Odds]
    explained: explain.Explained | None = None


@dataclass(frozen=True)
class Demo:
    """The parts, each with a folder of its own.

    Attributes:
        files: real data.
        out: folder of the folders.
        console: where progress is shown.
        splits: draws of people, but for the study of surroundings, which has one.
        people: synthetic ones; half of them in the study of surroundings.
    """

    files: Files
    out: Path
    console: Console
    splits: int = 5
    people: int = 2000

    def apoe(self) -> Part:
        """Real genotypes: odds ratios, pre-training, the network beside logistic regression, its explanation."""
        reference, folder = Reference(self.files.exon), self.out / "apoe"
        region = reference.region(None)
        found = variants.read(self.files.apoe, reference, region)
        odds = simulate.log_odds(found, region, list(APOE.values()))
        given = self._cohort(
            folder, self.files.apoe, reference, region, dict(zip(found.people, odds, strict=True)), 200
        )
        settings = replace(given, epochs=5)
        same = ("hidden", "layers", "heads", "feed_forward", "dropout", "k", "length", "residual", "pooling", "tokens")
        before = Pretraining(
            **{name: getattr(settings, name) for name in same}, sequences=settings.sequences,
            batch=16, steps=200, learning_rate=1e-3, decay=0.999, sentences=3000,
        )  # fmt: skip
        run.ensure(folder / "before", before, self.console)
        settings = replace(settings, init=str(folder / "before"), tokens=None)
        people = People.load(Path(settings.sequences))
        positions = {one.position: name for name, one in APOE.items()}
        made = baselines.odds_ratios(*baselines.at_positions(people, list(positions)), people.labels)
        records = self._judged(settings, folder, list(positions))
        looked = explain.explained(
            folder / "risk" / "split0", people=200, steps=32, names=self.files.apoe, progress=lambda _: None
        )
        title = "APOE, real genotypes, made-up disease"
        return Part(title, records, {positions[one.position]: one for one in made}, looked)

    def pair(self, *, effect: bool) -> Part:
        """Synthetic people, a disease of those who have one of two alleles and not the other; or of anybody."""
        reference, folder = Reference(self.files.sequence), self.out / ("pair" if effect else "nothing")
        first, second = self._near(reference)
        region = Region(reference.regions[0].contig, first - 201, second + 200)
        genotypes = self._people(folder, reference, region, self.people)
        found = variants.read(genotypes, reference, region)
        there = [reference.fetch(Region(region.contig, one - 1, one)) for one in (first, second)]
        odds = {}
        for name, both in zip(found.people, simulate.bases_at(found, region, [first, second]), strict=True):
            one, other = (any(side[at] != there[at] for side in both) for at in (0, 1))
            odds[name] = math.log(9) * (1 if one != other else -1) * effect
        settings = self._cohort(folder, genotypes, reference, region, odds, 200)
        settings = replace(settings, epochs=15 if effect else 3, patience=15)
        title = "Two sites that interact, synthetic people" if effect else "No effect, synthetic people"
        return Part(title, self._judged(settings, folder, []), {})

    def surroundings(self) -> Part:
        """Synthetic people, causes in a gene and 4 kb from it: more and more of what is around it, one draw."""
        reference, folder = Reference(self.files.sequence), self.out / "surroundings"
        contig, most = reference.regions[0].contig, max(MARGINS)
        gene, region = (Region(contig, GENE.start - more, GENE.end + more) for more in (0, most))
        genotypes = self._people(folder, reference, region, self.people // 2)
        found = variants.read(genotypes, reference, region)
        causes = self._causes(reference, region)
        odds = dict(zip(found.people, simulate.log_odds(found, region, causes), strict=True))
        settings = self._cohort(folder, genotypes, reference, region, odds, 3000)
        settings = replace(settings, region=str(gene), length=4096, epochs=8, patience=5)
        made = studies.surroundings(settings, MARGINS, 1, folder / "risk", self.console)
        return Part("A gene and what is around it, synthetic people", made, {})

    def _judged(self, settings: Finetuning, folder: Path, known: Sequence[int]) -> list[Record]:
        people = People.load(Path(settings.sequences))
        found = finetune(settings, folder / "risk", self.splits, self.console)
        return judge.records(settings, found, judge.features(people, known), people)

    def _people(self, folder: Path, reference: Reference, region: Region, count: int) -> Path:
        genotypes = folder / "genotypes.vcf.gz"
        folder.mkdir(parents=True, exist_ok=True)
        if not genotypes.exists():
            for _ in simulate.synthetic(self.files.sites, reference, region, count, genotypes, 0):
                pass
        return genotypes

    def _cohort(
        self, folder: Path, genotypes: Path, reference: Reference, region: Region, odds: dict[str, float], tokens: int
    ) -> Finetuning:
        """Phenotypes, sequences and tokens of a part, made if they are not there."""
        folder.mkdir(parents=True, exist_ok=True)
        sequences, made = folder / "people.tsv", folder / "tokens"
        if not sequences.exists():
            simulate.write_phenotypes(folder / "cohort.tsv", dict(odds), 0.5, SEED, "greenformers genome demo")
            phenotypes = {one.name: one.phenotype for one in Cohort.load(folder / "cohort.tsv").people}
            sources = [encode.Source(genotypes, tuple(phenotypes))]
            how = encode.Encoding(reference.path, region)
            for _ in encode.encode(sources, how, sequences, phenotypes=phenotypes, resume=True):
                pass
        if not (made / "tokenizer.json").exists():
            sentences = corpus.sentences_of(sequences, 0, count=3000 if tokens < 1000 else 20_000)
            subwords(sentences, size=tokens, characters=base_tokens("iupac"), max_length=512).save_pretrained(made)
        return replace(NETWORK, sequences=str(sequences), tokens=str(made))

    def _near(self, reference: Reference) -> tuple[int, int]:
        """Positions of the first two sites of the wanted frequency that are 300 to 600 apart."""
        places = [one.position for one in self._single(reference, reference.region(None), PAIR)]
        for before, position in itertools.pairwise(places):
            if 300 <= position - before <= 600:
                return before, position
        raise GenomeError(f"{self.files.sites}: has no two sites with frequencies in {PAIR} near each other")

    def _causes(self, reference: Reference, region: Region) -> list[Effect]:
        """The common sites nearest to where causes are wanted."""
        common = self._single(reference, region, COMMON)
        if not common:
            raise GenomeError(f"{self.files.sites}: has no site with a frequency in {COMMON} at {region}")
        found = []
        for away, ratio in CAUSES:
            wanted = (GENE.start + GENE.end) // 2 if away == 0 else (GENE.start if away < 0 else GENE.end) + away
            nearest = min(common, key=lambda one: abs(one.position - wanted))
            found.append(replace(nearest, odds_ratio=ratio))
        return found

    def _single(self, reference: Reference, region: Region, between: tuple[float, float]) -> list[Effect]:
        """Sites of one base and one alternative whose frequency is between two."""
        found = []
        for start, ref, alts, about in variants.sites(self.files.sites, region, reference.fetch(region)):
            frequencies = corpus.frequency(about, len(alts), self.files.sites)
            single = len(ref) == len(alts[0]) == len(alts) == 1
            if single and frequencies and between[0] <= frequencies[0] <= between[1]:
                found.append(Effect(region.start + start + 1, alts[0], 1.0))
        return found
