"""What tokens are learnt from, and how many."""

from dataclasses import dataclass
from pathlib import Path

from greenformers.train.settings import setting


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """What tokens are learnt from, and which. The help text of each is its documentation.

    Raises:
        ValueError: a value out of range, or options that do not go together.
    """

    reference: Path | None = setting(None, "Learn from a genome: FASTA.")  # noqa: RUF009
    region: str | None = setting(None, "Such as 19:45409039-45412650; by default the only sequence there is.")
    sites: Path | None = setting(None, "VCF or BCF: common variants to put into the genome.")  # noqa: RUF009
    least: float = setting(0.01, "Frequency of the rarer allele that makes a variant common.")
    sequences: Path | None = setting(None, "Learn from what `genome encode` wrote instead.")  # noqa: RUF009
    mode: str = setting("diplotype", "diplotype (66 characters) or haplotype (5).")
    alphabet: str = setting("iupac", "Characters of the pairs: iupac, or thesis (table 5.1).")
    size: int = setting(32_000, "Tokens.")
    longest: int = setting(16, "Characters of a subword at most.")
    pattern: str | None = setting(None, "k-mers instead of subwords: 111111 is a 6-mer, 110011 a gapped one of 4.")
    stride: int = setting(1, "Places from one k-mer to the next.")
    starts: int = setting(50, "Beginnings from which the genome is cut into sentences.")
    sentences: int = setting(100_000, "Sentences at most, drawn of all; one takes about 30 KB of memory.")
    max_length: int = setting(4096, "Tokens of a sequence of the network at most.")
    seed: int = setting(0, "Of what is drawn.")

    def __post_init__(self) -> None:
        # It reads numpy's tables of characters, and the command line reads this file for its help.
        from greenformers.genome.encode import check_kind

        if (self.reference is None) == (self.sequences is None):
            raise ValueError("name --reference or --sequences, one of them")
        if self.sequences is not None and (
            self.sites is not None or (self.mode, self.alphabet) != ("diplotype", "iupac")
        ):
            raise ValueError("sites, mode and alphabet are for --reference; those of --sequences are the file's own")
        check_kind(self.mode, self.alphabet)
        for name, least in (("seed", 0), ("starts", 1), ("sentences", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
