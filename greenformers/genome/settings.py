"""The settings of training on genomes: what all runs have, with the thesis' network as the default. Thesis 5.3.1."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from greenformers.train.settings import Training, setting

if TYPE_CHECKING:
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
        from greenformers.genome.masked import prepare

        return prepare(self)


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
        from greenformers.genome.risk import prepare

        return prepare(self)
