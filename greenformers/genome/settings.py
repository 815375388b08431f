"""Settings of training on genomes; the default network is that of Cahyawijaya 2021, 5.3.1."""

import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from greenformers.train.setting import setting
from greenformers.train.settings import Training
from greenformers.train.settings_file import read

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from greenformers.train.task import Task


@dataclass(frozen=True)
class Network(Training):
    """Settings of the network and its optimiser, by default those of Cahyawijaya 2021."""

    unused: ClassVar[tuple[str, ...]] = ("memory", "decoder_layers")

    tokens: str | None = setting(None, "Folder of `genome tokenize`; by default the tokenizer of the run in init.")
    length: int = setting(4096, "Longest sequence in tokens.")

    variant: str = setting(
        "linformer", "Variant of the network: transformer, lrt, an attention, or lrt+ and an attention."
    )
    k: int | None = setting(
        None,
        "Size of what is kept of full attention: k of linformer, ...; 256 if not given, or the length if that is less.",
    )
    hidden: int = setting(768, "Width d of the network.")
    layers: int = setting(12, "Number of layers.")
    heads: int = setting(12, "Number of heads, a divisor of the width.")
    feed_forward: int = setting(3072, "Width f of the feed-forward blocks.")
    dropout: float = setting(0.1, "Dropout after the embedding and each block.")
    warmup: float = setting(0.0, "Share of the steps that are warm-up.")
    optimizer: str | None = setting(
        "adamw", "Optimiser: adamw; or muon, of the matrices inside the layers, and AdamW of the rest."
    )

    def sizes(self) -> dict[str, Any]:
        """Arguments of the network's configuration as for all runs, with a default of `k`.

        Raises:
            ValueError: As in `Training.sizes`.
        """
        from greenformers.model.variant import rank_option

        if self.k is not None or (name := rank_option(self.variant)) is None or name in (self.option or {}):
            return super().sizes()
        return replace(self, k=min(256, self.length)).sizes()

    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer of the settings, or that of the run in `init`.

        Raises:
            ValueError: Neither is given, or the folder has no tokenizer.
        """
        from transformers import PreTrainedTokenizerFast

        from greenformers.train.task import MODEL

        if self.tokens is None and self.init is None:
            raise ValueError("tokens must be a folder of `genome tokenize` where there is no init")
        folder = Path(self.tokens) if self.tokens is not None else Path(self.init or "") / MODEL
        # A folder that is not there would be taken for a name on the hub.
        if not (folder / "tokenizer.json").is_file():
            raise ValueError(
                f"tokens must be a folder of `genome tokenize`, and init a finished run; got {str(folder)!r}"
            )
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


@dataclass(frozen=True)
class Pretraining(Network):
    """Settings of pre-training on masked tokens: sequences, network and training."""

    reference: str | None = setting(None, "FASTA file of a genome to train on.")
    region: str | None = setting(None, "Region of the genome; by default its only sequence.")
    sites: str | None = setting(None, "VCF or BCF file of common variants to put into the genome.")
    least: float = setting(0.01, "Least frequency of the rarer allele of a common variant.")
    sequences: str | None = setting(
        None, "File of `genome encode`, or FASTA of haplotypes, to train on, instead of a genome."
    )
    mode: str = setting("diplotype", "Sequences of a genome: diplotype or haplotype.")
    alphabet: str = setting("iupac", "Characters of the pairs of a genome: iupac or thesis.")
    starts: int = setting(50, "Number of beginnings from which the genome is cut into sentences.")
    sentences: int = setting(100_000, "Most sentences, drawn from all.")

    batch: int = setting(256, "Sequences a step, of all processes together.")
    steps: int | None = setting(200_000, "Number of optimisation steps.")
    learning_rate: float = setting(1e-4, "Highest learning rate.")
    decay: float | None = setting(0.999991, "Factor of the learning rate after every step.")

    def task(self) -> "Task":  # noqa: D102
        from greenformers.genome.corpus import without_bases
        from greenformers.genome.diplotype import ALPHABETS
        from greenformers.genome.encode import MODES
        from greenformers.genome.masked import Genome, GenomeMaskedLM, parts
        from greenformers.genome.reference import Reference
        from greenformers.train.processes import first_process
        from greenformers.train.task import Task

        self.check_unused()
        if (self.reference is None) == (self.sequences is None):
            raise ValueError("name a reference or sequences, one of them")
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}; got {self.mode!r}")
        if self.alphabet not in ALPHABETS:
            raise ValueError(f"alphabet must be one of {', '.join(ALPHABETS)}; got {self.alphabet!r}")
        if self.mode == "haplotype" and self.alphabet != "iupac":
            raise ValueError(f"alphabet is of pairs: it must be left out with mode haplotype, got {self.alphabet}")
        if self.sequences is not None:
            for name in ("region", "sites", "least", "mode", "alphabet", "starts"):
                if (given := getattr(self, name)) != getattr(Pretraining, name):
                    raise ValueError(f"{name} is for a reference; of sequences it is the file's own, got {given!r}")
        if self.reference is not None and self.sites is None and self.least != Pretraining.least:
            raise ValueError(f"least is for sites, and none are given; got {self.least}")
        for name in ("starts", "sentences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        self.sizes()  # what was mistyped is said before minutes of reading
        tokenizer, start = self.tokenizer(), self.start()
        sequences: dict[str, list[str]] = {}
        if self.reference is not None:
            sites = None if self.sites is None else Path(self.sites)
            genome = Reference(Path(self.reference))
            left_out: list[int] = []
            sequences = parts(
                genome, self.region, sites, least=self.least, mode=self.mode, alphabet=self.alphabet, left_out=left_out
            )
            if left_out and first_process():
                warnings.warn(without_bases(len(left_out)), stacklevel=2)
        people = None if self.sequences is None else Path(self.sequences)
        source = Genome(sequences, people, self.starts, self.sentences, self.seed)
        return Task(GenomeMaskedLM(source, tokenizer, self.length), tokenizer, start)


@dataclass(frozen=True)
class Finetuning(Network):
    """Settings of fine-tuning on a disease: people, network and training."""

    sequences: str = setting("", "File of `genome encode`, with phenotypes.")
    region: str | None = setting(None, "Part of the encoded region.")
    disease: str | None = setting(
        None, "Phenotype that is predicted, of the two; by default the last one in alphabetical order."
    )
    digest: str | None = setting(
        None, "SHA-256 that the file of sequences must have; `genome finetune` sets it in its runs."
    )
    split: int = setting(
        0, "Seed of the draw of train, valid and test people; that of the first, where there are several draws."
    )
    valid_share: float = setting(0.1, "Share of the people in the validation split.")
    test_share: float = setting(0.2, "Share of the people in the test split.")

    batch: int = setting(16, "People a step, of all processes together.")
    epochs: int = setting(30, "Most passes over the training people.")
    patience: int | None = setting(
        5,
        "Evaluations without a better AUC after which training ends, with the weights of the best; not with "
        "low_rank_training dense_first.",
    )
    learning_rate: float = setting(1e-5, "Highest learning rate.")
    decay: float | None = setting(0.9995, "Factor of the learning rate after every step.")

    def task(self) -> "Task":  # noqa: D102
        from greenformers.data import Examples, Labelled
        from greenformers.genome.people import People
        from greenformers.genome.risk import DiseaseRisk
        from greenformers.train.task import Task

        self.check_unused()
        people = People.load(sequences_of(self), self.region, disease=self.disease)
        splits = people.splits(self.split, self.valid_share, self.test_share)
        examples = {
            name: Examples([(people.text(row),) for row in rows], [int(people.labels[row]) for row in rows])
            for name, rows in splits.items()
        }
        data = Labelled("cohort", tuple(people.phenotypes), **examples)
        tokenizer = self.tokenizer()
        return Task(DiseaseRisk(data, tokenizer, self.length), tokenizer, self.start())


_OF_THE_RUN = (
    "variant", "rank", "hidden", "layers", "heads", "feed_forward", "feed_forward_kind", "residual", "share", "depth",
    "position",
)  # fmt: skip
"""Settings that must be those of the run that a network starts from."""

_AS_IN_THE_RUN = (*_OF_THE_RUN, "k", "option", "feed_forward_option", "depth_option", "pooling", "length")
"""Settings that are those of the run that a network starts from, unless others are given."""


def inherited(given: dict[str, Any]) -> dict[str, Any]:
    """Settings that were given, and the sizes of the run in `init` in place of those that were not.

    Early stopping, the default of fine-tuning, is off with low_rank_training "dense_first", whose layers it could leave
    dense.

    Args:
        given: Settings by name. `init` may be a run or one of its snapshots; without it, or where no run is there, the
            settings have no sizes but their own.

    Raises:
        ValueError: A size is given that is not the run's.
    """
    from greenformers.train.run import SETTINGS, check_kind

    if given.get("low_rank_training") == "dense_first":
        given = {"patience": None} | given
    if given.get("init") is None:
        return given
    folder = run_of(Path(given["init"]))
    if folder is None:
        return given
    kind = kind_of(folder / SETTINGS)
    check_kind(folder, kind)
    stored = read(folder / SETTINGS, kind)
    for name in _OF_THE_RUN:
        if name in given and given[name] != stored.get(name, given[name]):
            raise ValueError(f"{name} must be {stored[name]}, that of the run in init, or left out; got {given[name]}")
    return {name: stored[name] for name in _AS_IN_THE_RUN if name in stored} | given


def run_of(init: Path) -> Path | None:
    """The folder of the run that a network starts from, which `init` is or has a snapshot of; None if there is none."""
    from greenformers.train.run import SETTINGS

    # A snapshot is two folders below its run.
    return next((folder for folder in (init, init.parent.parent) if (folder / SETTINGS).is_file()), None)


def kind_of(path: Path) -> type[Network]:
    """The kind of the settings in a file of a run, by a setting that only one kind has."""
    try:
        stored = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    return Pretraining if isinstance(stored, dict) and "starts" in stored else Finetuning


def sequences_of(settings: Finetuning) -> Path:
    """The file of the people of a run.

    Raises:
        ValueError: No file is given.
        GenomeError: The file has changed since the run began.
    """
    from greenformers.genome.files import GenomeError, digest

    if not settings.sequences:
        raise ValueError("sequences must be a file that `genome encode` wrote, got none")
    path = Path(settings.sequences)
    if settings.digest is not None and digest(path) != settings.digest:
        # Train, valid and test would have other people.
        raise GenomeError(f"{path}: has changed since the run began (its digest differs)")
    return path
