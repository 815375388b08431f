"""The settings of training on genomes: what all runs have, with the thesis' network as the default. Thesis 5.3.1."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenformers.train.settings import Training, setting

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from greenformers.train.task import Task


@dataclass(frozen=True)
class Network(Training):
    """The thesis' network."""

    tokens: str | None = setting(None, "Folder of `genome tokenize`; by default the tokenizer of the run in init.")
    length: int = setting(4096, "Longest sequence in tokens.")

    variant: str = setting("linformer", "transformer, lrt, an attention, or lrt+ and an attention.")
    k: int | None = setting(
        None,
        "How much of full attention is kept: k of linformer, ...; 256 if not given, or the length if that is less.",
    )
    hidden: int = setting(768, "Width d of the network.")
    layers: int = setting(12, "Number of layers.")
    heads: int = setting(12, "Number of heads, a divisor of the width.")
    feed_forward: int = setting(3072, "Width f of the feed-forward blocks.")
    dropout: float = setting(0.1, "Dropout after the embedding and each block.")
    warmup: float = setting(0.0, "Share of the steps spent warming up.")

    def sizes(self) -> dict[str, Any]:
        """As of all runs, with how much of full attention is kept where it was not given.

        Raises:
            ValueError: as of all runs.
        """
        from greenformers.model.variant import rank_option

        if self.k is not None or rank_option(self.variant) is None:
            return super().sizes()
        return replace(self, k=min(256, self.length)).sizes()

    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer a run names, or that of the run it starts from.

        Raises:
            ValueError: neither is named, or there is none.
        """
        from transformers import PreTrainedTokenizerFast

        from greenformers.train.task import MODEL

        if self.tokens is None and self.init is None:
            raise ValueError("tokens must be a folder of `genome tokenize` where there is no init")
        folder = Path(self.tokens) if self.tokens is not None else Path(self.init or "") / MODEL
        # What is not there would be taken for a name on the hub, and looked for there.
        if not (folder / "tokenizer.json").is_file():
            raise ValueError(
                f"tokens must be a folder of `genome tokenize`, and init a finished run; got {str(folder)!r}"
            )
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


@dataclass(frozen=True)
class Pretraining(Network):
    """What is read, by which network, how it learns: masked tokens of a genome."""

    reference: str | None = setting(None, "Learn from a genome: FASTA.")
    region: str | None = setting(None, "Of the genome; by default the only sequence there is.")
    sites: str | None = setting(None, "VCF or BCF: common variants to put into the genome.")
    least: float = setting(0.01, "Frequency of the rarer allele that makes a variant common.")
    sequences: str | None = setting(None, "Learn from what `genome encode` wrote instead.")
    mode: str = setting("diplotype", "diplotype or haplotype, of a genome.")
    alphabet: str = setting("iupac", "Characters of the pairs of a genome: iupac or thesis.")
    starts: int = setting(50, "Beginnings from which the genome is cut into sentences.")
    sentences: int = setting(100_000, "Sentences at most, drawn of all.")

    batch: int = setting(256, "Sequences a step, of all processes.")
    steps: int | None = setting(200_000, "Optimisation steps.")
    learning_rate: float = setting(1e-4, "Highest learning rate.")
    decay: float | None = setting(0.999991, "Factor of the learning rate after every step.")

    def task(self) -> "Task":  # noqa: D102
        from greenformers.genome.diplotype import ALPHABETS
        from greenformers.genome.encode import MODES
        from greenformers.genome.masked import Genome, GenomeMaskedLM, parts
        from greenformers.genome.reference import Reference
        from greenformers.train.task import Task

        if (self.reference is None) == (self.sequences is None):
            raise ValueError("name a reference or sequences, one of them")
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}; got {self.mode!r}")
        if self.alphabet not in ALPHABETS:
            raise ValueError(f"alphabet must be one of {', '.join(ALPHABETS)}; got {self.alphabet!r}")
        if self.sequences is not None:
            for name in ("region", "sites", "mode", "alphabet"):
                if (given := getattr(self, name)) != getattr(Pretraining, name):
                    raise ValueError(f"{name} is for a reference; of sequences it is the file's own, got {given!r}")
        for name in ("starts", "sentences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        sequences: dict[str, list[str]] = {}
        if self.reference is not None:
            sites = None if self.sites is None else Path(self.sites)
            genome = Reference(Path(self.reference))
            sequences = parts(genome, self.region, sites, least=self.least, mode=self.mode, alphabet=self.alphabet)
        people = None if self.sequences is None else Path(self.sequences)
        source = Genome(sequences, people, self.starts, self.sentences, self.seed)
        tokenizer = self.tokenizer()
        return Task(GenomeMaskedLM(source, tokenizer, self.length), tokenizer, self.start())


@dataclass(frozen=True)
class Finetuning(Network):
    """Whose genomes, by which network, how it learns: who has the disease."""

    sequences: str = setting("", "What `genome encode` wrote, with phenotypes.")
    region: str | None = setting(None, "Part of the encoded region.")
    digest: str | None = setting(None, "SHA-256 the sequences must have; `genome finetune` puts it into its runs.")
    split: int = setting(0, "Seed of the draw of train, valid and test people; of several draws, of the first.")
    valid_share: float = setting(0.1, "Share of the people to choose by.")
    test_share: float = setting(0.2, "Share of the people to score on.")

    batch: int = setting(16, "People a step, of all processes.")
    epochs: int = setting(30, "Passes over the training people at most.")
    patience: int | None = setting(5, "End after so many evaluations without a better AUC; keep the best.")
    learning_rate: float = setting(1e-5, "Highest learning rate.")
    decay: float | None = setting(0.9995, "Factor of the learning rate after every step.")

    def task(self) -> "Task":  # noqa: D102
        from greenformers.data import Examples, Labelled
        from greenformers.genome.people import People
        from greenformers.genome.risk import DiseaseRisk
        from greenformers.train.task import Task

        people = People.load(sequences_of(self), self.region)
        splits = people.splits(self.split, self.valid_share, self.test_share)
        examples = {
            name: Examples([(people.text(row),) for row in rows], [int(people.labels[row]) for row in rows])
            for name, rows in splits.items()
        }
        data = Labelled("cohort", tuple(people.phenotypes), **examples)
        tokenizer = self.tokenizer()
        return Task(DiseaseRisk(data, tokenizer, self.length), tokenizer, self.start())


def sequences_of(settings: Finetuning) -> Path:
    """The file of the people of a run.

    Raises:
        ValueError: none is named.
        GenomeError: it has changed since the run began.
    """
    from greenformers.genome.files import GenomeError, digest

    if not settings.sequences:
        raise ValueError("sequences must be a file that `genome encode` wrote, got none")
    path = Path(settings.sequences)
    if settings.digest is not None and digest(path) != settings.digest:
        # Others would be in train, valid and test then.
        raise GenomeError(f"{path}: is not what the run was begun with (digest)")
    return path
