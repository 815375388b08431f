"""No part of the library asks whether a mechanism or a block is a certain one: capabilities and registries answer."""

import ast
import re
from pathlib import Path

import pytest

import greenformers

PACKAGE = Path(greenformers.__file__).parent
NAMES = {
    "linformer", "bp", "isab", "star", "pma", "lite", "evolved", "independent", "chunked", "performer", "compressive",
    "transformer_xl", "reformer",
}  # fmt: skip
QUOTED = re.compile(rf"""["']({"|".join(NAMES)})["']""")


def compared(source: str) -> set[str]:
    """Names that a file compares a value with, or looks a value up among: == != in, `match` and `case`."""
    names = set()
    # Most files have no such name, and take long to parse.
    for node in ast.walk(ast.parse(source if QUOTED.search(source) else "")):
        sides: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        for side in sides:
            parts = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
            if isinstance(side, ast.Dict):
                parts = [key for key in side.keys if key is not None]
            names |= {part.value for part in parts if isinstance(part, ast.Constant) and part.value in NAMES}
    return names


@pytest.mark.parametrize("folder", ["model", "measure", "train", "genome", "advise", "report", "speech", "blocks"])
def test_no_mechanism_is_asked_for_by_name(folder: str) -> None:
    files = sorted((PACKAGE / folder).glob("*.py"))
    assert files
    assert {path.name: names for path in files if (names := compared(path.read_text()))} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('if attention == "linformer": pass', {"linformer"}),
        ('x = variant.split("+")[-1] != "linformer"', {"linformer"}),
        ('x = "bp" == self.block', {"bp"}),
        ('x = name in ("standard", "bp", "isab")', {"bp", "isab"}),
        ('x = name in {"bp": 1}', {"bp"}),
        ('match x:\n    case "bp": pass', {"bp"}),
        ('x = times["lrt"] <= times["linformer"]', set()),
        ('x = {"linformer": {"k": 3}}', set()),
    ],
)
def test_the_test_finds_them(source: str, expected: set[str]) -> None:
    assert compared(source) == expected
