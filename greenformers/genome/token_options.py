"""Options of training a tokenizer."""

from dataclasses import dataclass
from pathlib import Path

from greenformers.train.setting import setting


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """Sequences to train a tokenizer on, and kind of its tokens. The help text of each field documents it.

    Raises:
        ValueError: A value is out of range, or options exclude each other.
    """

    reference: Path | None = setting(None, "FASTA file of a genome to train on.")  # noqa: RUF009
    region: str | None = setting(
        None, "Region such as 19:45409039-45412650; by default the only sequence of the genome."
    )
    sites: Path | None = setting(None, "VCF or BCF file of common variants to put into the genome.")  # noqa: RUF009
    least: float = setting(0.01, "Least frequency of the rarer allele of a common variant.")
    sequences: Path | None = setting(  # noqa: RUF009
        None, "File of `genome encode`, or FASTA of haplotypes, to train on, instead of a genome."
    )
    mode: str = setting("diplotype", "Sequences: diplotype (66 characters) or haplotype (5).")
    alphabet: str = setting("iupac", "Characters of the pairs: iupac, or thesis (Cahyawijaya 2021, table 5.1).")
    size: int = setting(32_000, "Size of the vocabulary, in tokens.")
    longest: int = setting(16, "Longest subword, in characters.")
    pattern: str | None = setting(None, "k-mers instead of subwords: 111111 is a 6-mer, 110011 a gapped one of 4.")
    stride: int = setting(1, "Distance from one k-mer to the next, in characters.")
    starts: int = setting(50, "Number of beginnings from which the genome is cut into sentences.")
    sentences: int = setting(100_000, "Most sentences, drawn from all; each takes about 30 KB of memory.")
    max_length: int = setting(4096, "Longest sequence of the network, in tokens.")
    seed: int = setting(0, "Seed of the draw of sentences.")

    def __post_init__(self) -> None:
        # It reads numpy's tables of characters, and the command line reads this file for its help.
        from greenformers.genome.encode import check_kind

        if (self.reference is None) == (self.sequences is None):
            raise ValueError("name --reference or --sequences, one of them")
        if self.sequences is not None and (
            self.sites is not None or (self.mode, self.alphabet) != ("diplotype", "iupac")
        ):
            raise ValueError("sites, mode and alphabet are for --reference; those of --sequences are the file's own")
        if self.sequences is not None and self.region is not None:
            raise ValueError(f"region is for --reference; --sequences are taken whole, got {self.region}")
        for name, other, without in (
            ("stride", "--pattern", self.pattern is None), ("longest", "subwords, without --pattern", self.pattern),
            ("starts", "--reference", self.sequences), ("least", "--sites", self.sites is None),
        ):  # fmt: skip
            if without and (given := getattr(self, name)) != getattr(TokenOptions, name):
                raise ValueError(f"{name} is for {other}, got {given}")
        check_kind(self.mode, self.alphabet)
        if self.mode == "haplotype" and self.alphabet != "iupac":
            raise ValueError(f"alphabet is of pairs: it must be left out with mode haplotype, got {self.alphabet}")
        for name, least in (("seed", 0), ("starts", 1), ("sentences", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
