"""`greenformers genome tokenize`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli.genome._flags import Alphabet, Mode, Seed, Where

ORDER = 20


def tokenize(
    out: Annotated[Path, typer.Option(help="Folder of the tokenizer.")],
    reference: Annotated[Path | None, typer.Option(help="Learn from a genome: FASTA.")] = None,
    region: Where = None,
    sites: Annotated[Path | None, typer.Option(help="VCF or BCF: common variants to put into the genome.")] = None,
    least: Annotated[float, typer.Option(help="Frequency of the rarer allele that makes a variant common.")] = 0.01,
    sequences: Annotated[Path | None, typer.Option(help="Learn from what `genome encode` wrote instead.")] = None,
    mode: Mode = "diplotype",
    alphabet: Alphabet = "iupac",
    size: Annotated[int, typer.Option(help="Tokens.")] = 32_000,
    longest: Annotated[int, typer.Option(help="Characters of a subword at most.")] = 16,
    pattern: Annotated[
        str | None, typer.Option(help="k-mers instead of subwords: 111111 is a 6-mer, 110011 a gapped one of 4.")
    ] = None,
    stride: Annotated[int, typer.Option(help="Places from one k-mer to the next.")] = 1,
    starts: Annotated[int, typer.Option(help="Beginnings from which the genome is cut into sentences.")] = 50,
    sentences: Annotated[
        int, typer.Option(help="Sentences at most, drawn of all; one takes about 30 KB of memory.")
    ] = 100_000,
    max_length: Annotated[int, typer.Option(help="Tokens of a sequence of the network at most.")] = 4096,
    seed: Seed = 0,
) -> None:
    """Learn tokens: subwords of SentencePiece (BPE), or k-mers. The folder is for `from_pretrained`."""
    from greenformers.genome import corpus, tokenizer
    from greenformers.genome.diplotype import diplotype, text
    from greenformers.genome.encode import Encoding
    from greenformers.genome.files import Region
    from greenformers.genome.reference import Reference

    terminal.quiet()
    if (reference is None) == (sequences is None):
        raise ValueError("name --reference or --sequences, one of them")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already, and not an empty folder")
    if sequences is not None and (sites is not None or (mode, alphabet) != ("diplotype", "iupac")):
        raise ValueError("sites, mode and alphabet are for --reference; those of --sequences are the file's own")
    Encoding(Path(), Region("", 0, 0), mode, alphabet)
    for name, value, least_value in (("seed", seed, 0), ("starts", starts, 1), ("sentences", sentences, 1)):
        if value < least_value:
            raise ValueError(f"{name} must be at least {least_value}, got {value}")
    whole: list[str] = []
    if reference is not None:
        genome = Reference(reference)
        both = corpus.haplotypes(genome, genome.region(region), sites, least=least)
        whole = [text(diplotype(*both), alphabet)] if mode == "diplotype" else [one.sequence() for one in both]
        read = corpus.sentences(whole, seed, starts=starts, count=sentences)
    else:
        assert sequences is not None
        mode, alphabet = corpus.kind_of(sequences)
        read = corpus.sentences_of(sequences, seed, count=sentences)
    counted = terminal.Counted(read)
    with terminal.console(stderr=True).status("learning tokens"):
        if pattern is not None:
            made = tokenizer.kmer_tokens(counted, pattern=pattern, stride=stride, size=size, max_length=max_length)
        else:
            letters = tokenizer.base_tokens(alphabet if mode == "diplotype" else None)
            made = tokenizer.subwords(counted, size=size, characters=letters, longest=longest, max_length=max_length)
        made.save_pretrained(out)
        mean, vocabulary = None, 0.0
        if pattern is None:
            vocabulary = tokenizer.mean_token(made)
            mean = tokenizer.mean_length(made, whole or corpus.sentences_of(sequences or Path(), seed, count=1000))
    print(f"{out}: {len(made):,} tokens of {counted.count:,} sentences")
    if mean is not None:
        spoken = f"in the sequences a token has {mean:.2f} characters on average, in the vocabulary {vocabulary:.2f}"
        print(f"{spoken} (thesis: 8.7, chr19)")
