"""`greenformers genome tokenize`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._options import from_fields
from greenformers.genome.token_options import TokenOptions

ORDER = 20
EXAMPLES = ("greenformers genome tokenize --reference chr19.fa --sites dbsnp.vcf.gz --out tokens",)


@from_fields
def tokenize(*, out: Annotated[Path, typer.Option(help="Folder of the tokenizer.")], options: TokenOptions) -> None:
    """Train a tokenizer of subwords (SentencePiece, BPE) or k-mers, which `from_pretrained` loads."""
    from greenformers.genome.corpus import without_bases
    from greenformers.genome.learn import learn

    terminal.quiet()
    with terminal.console(stderr=True).status("learning tokens"):
        learnt = learn(options, out)
    print(f"{out}: {len(learnt.tokenizer):,} tokens of {learnt.sentences:,} sentences")
    if learnt.left_out:
        print(without_bases(learnt.left_out))
    if learnt.mean is not None:
        print(
            f"in the sequences a token has {learnt.mean:.2f} characters on average, in the vocabulary "
            f"{learnt.vocabulary_mean:.2f} (Cahyawijaya 2021: 8.7, chr19)"
        )
