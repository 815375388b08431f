"""The guides to speech and genomes are true: their commands run, and write what the pages show below them.

The shell blocks of a page run one after the other in one folder, in which `data` holds open data. Below the commands
stands a block of text with what they write on stdout; `...` in it stands for anything within a line, as for times. What
a trained network tells differs from machine to machine: `<!-- of one machine: figures -->` above such a text says that
numbers, and the widths of tables, are not compared; with `words` in place of `figures` it is compared only that there
is something. Commands that cannot run have `<!-- not run: why -->`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared/data"
GUIDES = {
    "speech": ("fsdd",),
    "genome": ("genomics_apoe_1000g", "genomics_bam", "genomics_chr20_1mb", "genomics_hprc_haplotypes"),
}
"""The folders of data of each page."""
MODULES = {"speech": ("soundfile", "jiwer", "scipy"), "genome": ("pysam", "sentencepiece", "sklearn", "scipy")}
"""What the extra of each page brings."""
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^>]*?) -->\n+)?^```sh\n(?P<commands>.*?)^```\n"
    r"(?:\n*(?:^<!-- of one machine: (?P<differs>figures|words) -->\n+)?^```text\n(?P<shown>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


class Block(NamedTuple):
    """Commands of a page.

    Attributes:
        why: Why they are not run; None for those that are.
        commands: The commands.
        differs: What of their output differs from machine to machine: "figures", "words", or None.
        shown: The output that the page shows; None where it shows none.
    """

    why: str | None
    commands: str
    differs: str | None
    shown: str | None


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def blocks(text: str) -> list[Block]:
    return [Block(*match.group("why", "commands", "differs", "shown")) for match in BLOCK.finditer(text)]


def tidy(text: str) -> str:
    """A text without blanks at the ends of lines, and without empty lines around it."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def written(commands: str, folder: Path) -> str:
    """What commands write on stdout, in a shell that ends with the first one that fails."""
    plain = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    # `python` and `greenformers` are those of this environment.
    plain["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), plain["PATH"]])
    plain |= {"PYTHONIOENCODING": "utf-8", "HF_HUB_OFFLINE": "1"}
    shell = ["bash", "-euo", "pipefail", "-c", commands]
    done = subprocess.run(shell, cwd=folder, env=plain, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, f"{commands}{done.stderr[-3000:]}"
    return tidy(done.stdout)


def masked(text: str) -> str:
    """A text with # for each number, without blanks and lines of tables, whose widths depend on the numbers."""
    return re.sub(r"[ ─━╸╺]+", "", NUMBER.sub("#", text))


def agree(shown: str, output: str, differs: str | None) -> bool:
    """Whether a page shows what commands have written."""
    if differs == "words":
        return bool(output)
    if differs == "figures":
        shown, output = masked(shown), masked(output)
    return re.fullmatch(re.escape(shown).replace(re.escape("..."), ".*"), output) is not None


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", GUIDES)
def test_the_commands_of_a_guide_write_what_it_shows(name: str, tmp_path: Path) -> None:
    for module in MODULES[name]:
        pytest.importorskip(module, reason=f"the {name} extra is not installed")
    for folder in GUIDES[name]:
        if not (DATA / folder).is_dir():
            pytest.skip(f"shared/data/{folder} is not beside the repository on this machine")
    (tmp_path / "data").symlink_to(DATA)
    for block in blocks(page(name)):
        if block.why is not None:
            continue
        output = written(block.commands, tmp_path)
        if block.shown is not None:
            shown = tidy(block.shown)
            assert agree(shown, output, block.differs), f"{block.commands}\nshown:\n{shown}\nwritten:\n{output}"


@pytest.mark.parametrize("name", GUIDES)
def test_every_output_stands_below_commands_that_run(name: str) -> None:
    text = page(name)
    own = blocks(text)
    assert len(own) == len(re.findall("^```sh$", text, re.MULTILINE))
    shown = [block for block in own if block.shown is not None]
    assert len(shown) == len(re.findall("^```text$", text, re.MULTILINE))
    assert len([block for block in own if block.differs]) == text.count("<!-- of one machine: ")
    assert all(block.why is None for block in shown)
    assert all(len(block.why) > 10 for block in own if block.why is not None)


def test_blocks_are_taken_apart() -> None:
    text = (
        "```sh\nls\n```\n\nsaid\n\n```text\nnothing\n```\n"
        "```sh\na\nb\n```\n\n```text\nc\n```\n"
        "<!-- not run: a microphone -->\n```sh\nd\n```\n\n"
        "```sh\ne\n```\n\n<!-- of one machine: words -->\n```text\nf\n```\n"
    )
    assert blocks(text) == [
        (None, "ls\n", None, None), (None, "a\nb\n", None, "c\n"), ("a microphone", "d\n", None, None),
        (None, "e\n", "words", "f\n"),
    ]  # fmt: skip


def test_what_differs_is_told() -> None:
    assert agree("a.tsv: 2 people\nin ... s", "a.tsv: 2 people\nin 3.1 s", None)
    assert not agree("a.tsv: 2 people", "a.tsv: 3 people", None)
    assert not agree("a.tsv", "abtsv", None)
    assert not agree("a ... c", "a\nb c", None)
    table, other = "┃ AUC ┃\n│ 1,000 │ -0.5 to +1e-05 │", "┃ AUC   ┃\n│ 31.25 │   +2 to 12       │"
    assert agree(table, other, "figures")
    assert not agree(table, other, None)
    assert not agree(table, other.replace("AUC", "F1"), "figures")
    assert agree("seven", "eleven", "words")
    assert not agree("seven", "", "words")


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    assert written("echo one  \necho two\n", tmp_path) == "one\ntwo"
    with pytest.raises(AssertionError, match="false"):
        written("false\necho two\n", tmp_path)
