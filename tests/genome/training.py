"""Commands that train on genomes, as a user meets them, and forty made-up people they learn from."""

import io
import os
import random
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from command_line import run
from genome import cohort_files as files
from genome.cohort_files import OTHER
from genome.made import bases, fasta, vcf

from greenformers.train import run as runs

SEQUENCE = files.SEQUENCE + bases(40_000 - len(files.SEQUENCE), 5)
PLANTED, SITES = 320, (310, 320, 331, 333, 338, 345, 346, 352)
PEOPLE = [f"zoe{number:02}" for number in range(40)]
SECRET = re.compile(r"zoe\d|[ACGTNRYKMSW]{12,}|[01][|/][01]")
NETWORK = "--hidden 16 --layers 1 --heads 2 --feed-forward 16 --k 4 --length 64 "


def told(folder: Path, words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in a folder; it never shows who somebody is, or has."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        code = run(patch, "genome", *shlex.split(words))
    assert not SECRET.search(out.getvalue() + err.getvalue())
    assert "Traceback" not in err.getvalue()
    return code, out.getvalue(), err.getvalue()


def shown(folder: Path, words: str) -> str:
    """What a command prints that must succeed."""
    code, out, err = told(folder, words)
    assert code == 0, err
    return out


def state(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def refusal(folder: Path, words: str) -> str:
    """The one line by which a command is refused that changes nothing in the folder."""
    before = state(folder)
    code, _, err = told(folder, words)
    (line,) = err.strip().splitlines()
    assert (code, line[:14]) == (2, "greenformers: ")
    assert state(folder) == before
    return line.removeprefix("greenformers: ")


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


@contextmanager
def stopped(name: str) -> Iterator[None]:
    """A signal stops the run in the folder whose path ends so, in its second step."""

    class Signal(runs._Metrics):
        def on_step_begin(self, args, state, control, **_):
            if str(self._path.parent).endswith(name) and state.global_step == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_Metrics", Signal)
        yield


def forty(folder: Path, cohort: Path) -> Path:
    """A longer genome and more people than the cohort's, encoded; all of them differ."""
    shutil.copytree(cohort, folder)
    fasta(folder / "ref.fa", **{"19": SEQUENCE})
    (folder / "ref.fa.fai").unlink()
    source, calls = random.Random(1), {}
    for number, name in enumerate(PEOPLE):
        ill, own = number % 2, [f"0|{number >> bit & 1}" for bit in range(6)]
        calls[name] = [f"{source.randint(0, 1)}|0", f"{ill}|{ill * source.randint(0, 1)}", *own]
    pairs = [(SEQUENCE[place - 1], OTHER[SEQUENCE[place - 1]]) for place in SITES]
    rows = [(place, *pairs[at], *[calls[name][at] for name in PEOPLE]) for at, place in enumerate(SITES)]
    named = vcf(folder / "people.vcf", rows, PEOPLE)
    (folder / "names.vcf").write_text(named.read_text().replace(f"\t{PLANTED}\t.", f"\t{PLANTED}\trs77"))
    table = [f"{name}\t{'ill' if number % 2 else 'healthy'}\n" for number, name in enumerate(PEOPLE)]
    (folder / "table.tsv").write_text("person\tphenotype\n" + "".join(table))
    where = "--reference ref.fa --region 19:301-360 --index"
    shown(folder, f"encode {where} people.vcf --cohort table.tsv --out people.tsv")
    shown(folder, "tokenize --reference ref.fa --sites sites.vcf --size 120 --starts 3 --out tokens --max-length 64")
    return folder
