"""The seam: a change is one class in one file, and all else follows from it. No other file names a change."""

import ast
import json
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import folder, pairs
from typer.testing import CliRunner
from zoo import network

import greenformers
from greenformers.changes import Given, names
from greenformers.search.recipes import name_of
from greenformers.search.space import Space

PACKAGE = Path(greenformers.__file__).parent
ROOT = PACKAGE.parent

TOY = '''"""Toy: numbers of linear layers after the point, cut off."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from greenformers.changes._contract import Change, Given, option
from greenformers.changes._report import Report, UnitReport


class Cut(nn.Linear):
    digits = 3

    def forward(self, x):
        return super().forward(x).mul(10**self.digits).round().div(10**self.digits)


@dataclass(frozen=True)
class Toy(Change):
    """Outputs of linear layers with so many digits."""

    digits: int = option(3, "Digits after the point.", "--toy-digits")
    order: ClassVar[int] = 60

    def apply(self, model, given):
        found = [(path, part) for path, part in model.named_modules() if type(part) is nn.Linear]
        for path, part in found:
            part.__class__, part.digits = Cut, self.digits
        units = [UnitReport(path, f"{self.digits} digits", 1, 1) for path, _ in found]
        return Report({"name": "toy", "digits": self.digits}, f"{len(found)} layers", units)

    @classmethod
    def describe(cls, model):
        return {path: part.digits for path, part in model.named_modules() if type(part) is Cut} or None

    @classmethod
    def searched(cls, model, *, length, causal, heals):
        return [cls()]

    @classmethod
    def place(cls, model, description):
        for path, digits in description.items():
            model.get_submodule(path).__class__, model.get_submodule(path).digits = Cut, digits
        return []
'''

STRANGER = """
import json, sys, greenformers, greenformers.changes
greenformers.changes.__path__.append(sys.argv[1])
import torch
from transformers import AutoModel
torch.set_num_threads(1)
model = AutoModel.from_pretrained(sys.argv[2])
cut = sum(type(part).__name__ == "Cut" for part in model.modules())
ids = torch.arange(3, 12)[None]
with torch.no_grad():
    loaded = greenformers.load(sys.argv[2])(ids)[0]
    print(json.dumps([cut, model(ids).last_hidden_state.sum().item(), loaded.sum().item()]))
"""


def run_commands(toy: str, commands: list[list[str]]) -> list[Any]:
    """What commands print where a folder with one change more is there, and the recipes that advice would try."""
    import greenformers.changes
    from greenformers.train import bf16

    bf16.quickest = lambda: "fp32"  # what is tried depends on the machine
    for name in [name for name in sys.modules if name.startswith("greenformers.cli")]:
        del sys.modules[name]  # flags are made as a command is imported
    greenformers.changes.__path__.append(toy)
    from greenformers.cli import application

    shown: list[Any] = []
    for words in commands:
        done = CliRunner().invoke(application(), words, env={"COLUMNS": "200"})
        assert done.exit_code == 0, (words, done.output, done.exception)
        shown.append(done.output)
    space = Space.of(network("bert", "BertModel"), Given(), length=9, causal=False)
    return [*shown, [name_of(space.recipe(genes)) for genes in (*space.singles(), tuple(map(len, space.slots)))]]


def forked(function: Callable[..., Any], *given: Any) -> Any:
    """What a function gives in a fork of this process, which it may change as it likes."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=lambda: there.send(function(*given)))
    child.start()
    there.close()
    try:
        return here.recv()
    finally:
        child.join(60)


def fresh(code: str, *words: object) -> list[Any]:
    """What a fresh process prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=250,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return records


def test_a_change_is_one_file(tmp_path: Path) -> None:
    toy = tmp_path / "changes"
    toy.mkdir()
    (toy / "toy.py").write_text(TOY)
    model = str(folder(tmp_path, "bert", "BertModel"))
    texts = str(pairs(tmp_path / "pairs.tsv"))
    small, again, alone = (tmp_path / name for name in ("small", "again", "alone"))
    commands = [
        ["compress", "--help"],
        ["changes"],
        ["compress", model, "--toy-digits", "2", "--int8", "--evaluate", texts, "--lengths", "", "--out", small],
        ["compress", model, "--recipe", small / "recipe.toml", "--lengths", "", "--out", again],
        ["compress", model, "--change", "toy 2", "--lengths", "", "--out", alone],
    ]
    help_, listed, said, _, _, tried = forked(
        run_commands, str(toy), [[str(word) for word in words] for words in commands]
    )
    assert "--toy-digits" in help_
    assert "Digits after the point." in listed
    assert "toy: 13 layers" in said
    assert (small / "recipe.toml").read_text() == '[[change]]\nname = "toy"\ndigits = 2\n\n[[change]]\nname = "int8"\n'
    assert (again / "recipe.toml").read_text() == (small / "recipe.toml").read_text()
    assert (again / "model.safetensors").read_bytes() == (small / "model.safetensors").read_bytes()
    assert "toy + int8" in (small / "README.md").read_text()
    assert "`toy`: Outputs of linear layers with so many digits." in (alone / "README.md").read_text()
    cut, plain, loaded = fresh(STRANGER, toy, alone)
    assert cut == 13
    assert plain == loaded
    assert "toy" in tried
    assert "1 layer + low rank 0.5 + toy + int8" in tried
    # Where the change is not known, the result is refused and not read without it.
    with pytest.raises(ValueError, match="'toy' is not a change; the known ones are"):
        greenformers.load(alone)


def strings_and_imports(source: str) -> set[str]:
    """What a file could name a change by: words in quotes that are one name, and modules and classes it imports."""
    said = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            said.add(node.value)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("greenformers.changes"):
            said |= {f"changes.{alias.name}" for alias in node.names}
            said |= {f"changes.{part}" for part in (node.module or "").split(".")[2:]}
    return said


ORDINARY = {"attention", "bits", "heads", "layers", "narrow", "neurons", "product", "width"}
"""Names of changes that are words of other meaning too: a slot of a configuration, a tag, or something counted."""


def test_no_other_file_names_a_change() -> None:
    classes = {name.title().replace("_", "") for name in names()}
    forbidden = set(names()) - ORDINARY
    forbidden |= {f"changes.{name}" for name in {*names(), *classes, *(f"_{name}" for name in names())}}
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if not path.is_relative_to(PACKAGE / "changes")]
    assert len(paths) > 200
    # Most files hold no such word at all, and need not be parsed.
    holds = re.compile("|".join(["greenformers.changes", r"changes\.\w", *(set(names()) - ORDINARY)]))
    texts = ((path, text) for path in paths if holds.search(text := path.read_text()))
    said = {str(path.relative_to(PACKAGE)): strings_and_imports(text) & forbidden for path, text in texts}
    assert {path: words for path, words in said.items() if words} == {}


def test_the_finder_finds() -> None:
    assert strings_and_imports('x = "int8"') == {"int8"}
    assert "changes.LowRank" in strings_and_imports("from greenformers.changes import LowRank")
    assert "changes.low_rank" in strings_and_imports("from greenformers.changes.low_rank import LowRank")
