"""Tokens of a genome: how much shorter a sequence becomes (thesis 5.4.3: "average token length" 8.7).

    python benchmarks/genome_tokens.py [--quick] [--data ../shared/data] [--json results/genome_tokens.jsonl]

1 Mb of chr20 with its common variants (frequency of the rarer allele 1 % or more), sentences as in the thesis (50
beginnings, pieces of 500 to 1,000). Tokens are learnt from all of it and asked of all of it, as the thesis does; and
learnt from the first 800 kb and asked of the last 200 kb. k-mers stand beside them: with a stride of 1 a sequence
becomes no shorter; with a stride of k it does, but a shift by one base changes all tokens. [UNK] is the share of tokens
that are not in the vocabulary. The last column is the mean length of the tokens of the vocabulary, each counted once,
which is what the thesis' 8.7 seems to be: a sequence becomes shorter by less.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from _harness import Benchmark, Run, data
from rich.progress import track
from rich.table import Table
from transformers import PreTrainedTokenizerFast

from greenformers.genome import corpus
from greenformers.genome.diplotype import diplotype, text
from greenformers.genome.reference import Reference
from greenformers.genome.tokenizer import base_tokens, kmer_tokens, kmers, mean_token, subwords
from greenformers.measure.record import Record

PUBLISHED = 8.7
LEARNT = 0.8

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="few sentences",
    options=(data("--data", ".", "folder of the data sets", "genomics_chr20_1mb"),),
)


def main(run: Run) -> None:
    folder, count = run.given.data / "genomics_chr20_1mb", 1_000 if run.quick else 20_000
    reference = Reference(next(folder.glob("*.fa.gz")))
    both = corpus.haplotypes(reference, reference.region(None), next(folder.glob("*.vcf.gz")))
    # Of the two haplotypes the one with the common alternatives.
    sequences = {"diplotype": text(diplotype(*both)), "haplotype": both[1].sequence()}
    characters = {"diplotype": base_tokens("iupac"), "haplotype": base_tokens(None)}
    table = Table("sequence", "tokens", "characters a token", "[UNK]", "held out", "[UNK]", "34 kb (ms)", "vocabulary")
    records: list[Record] = []
    for mode, whole in sequences.items():
        cut = int(LEARNT * len(whole))
        for kind in track(KINDS, mode):
            row = []
            for test, source, target in (("all", whole, whole), ("held out", whole[:cut], whole[cut:])):
                sentences = list(corpus.sentences([source], 0, count=count))
                tokenizer = kind.learnt(sentences, characters[mode])
                mean, unknown, milliseconds = asked(kind, tokenizer, target)
                row += [f"{mean:.2f}", f"{100 * unknown:.1f} %"]
                setting = {"mode": mode, "test": test, "tokens": len(tokenizer), "sentences": len(sentences)}
                for metric, value in (("token_length", mean), ("unknown", 100 * unknown)):
                    records.append(run.record(metric, value, kind.name, setting))
                if test == "all":
                    own = mean_token(tokenizer)
                    records.append(run.record("vocabulary_length", own, kind.name, setting))
            table.add_row(mode, kind.name, *row, f"{milliseconds:.0f}", f"{own:.2f}")
    table.add_row("diplotype", "thesis: subwords, 32,000 (chr19)", *[""] * 5, f"{PUBLISHED}")
    run.show(table)
    run.write(records)


@dataclass(frozen=True)
class Kind:
    """A way to make tokens: of subwords a number, of k-mers a pattern and a stride."""

    size: int = 32_000
    pattern: str | None = None
    stride: int = 1

    @property
    def name(self) -> str:
        """As in the table."""
        if self.pattern is None:
            return f"subwords, {self.size:,}"
        gapped = "gapped " * ("0" in self.pattern)
        return f"{gapped}{self.pattern.count('1')}-mers of {len(self.pattern)}, stride {self.stride}"

    def learnt(self, sentences: Sequence[str], characters: str) -> PreTrainedTokenizerFast:
        """A tokenizer of these sentences."""
        if self.pattern is None:
            return subwords(sentences, size=self.size, characters=characters)
        return kmer_tokens(sentences, pattern=self.pattern, stride=self.stride, size=self.size)

    def read(self, sequence: str) -> str:
        """A sequence as the tokenizer reads it."""
        return sequence if self.pattern is None else kmers(sequence, self.pattern, self.stride)


KINDS = (Kind(1_000), Kind(4_000), Kind(), Kind(pattern="111111", stride=1), Kind(pattern="111111", stride=6),
         Kind(pattern="11100111", stride=8))  # fmt: skip


def asked(kind: Kind, tokenizer: PreTrainedTokenizerFast, sequence: str) -> tuple[float, float, float]:
    """Characters a token, share of [UNK], milliseconds for 34,000 characters."""
    ids = tokenizer(kind.read(sequence), add_special_tokens=False)["input_ids"]
    some = kind.read(sequence[:34_000])
    start = time.perf_counter()
    tokenizer(some)
    seconds = time.perf_counter() - start
    return len(sequence) / len(ids), ids.count(tokenizer.unk_token_id) / len(ids), 1000 * seconds


if __name__ == "__main__":
    BENCHMARK.run(main)
