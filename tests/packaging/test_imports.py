"""Rule 1 of the house: imports run one way."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "greenformers"
ORDER = [
    {"attention", "lowrank"},
    {"feed_forward"},
    {"blocks"},
    {"model"},
    {"data"},
    {"measure"},
    {"train"},
    {"solve"},
    {"changes"},
    {"checkpoint"},
    {"compress"},
    {"export"},
    {"advise"},
    {"report"},
    {"speech", "genome"},
    {"_terminal"},
    {"_training"},
    {"_genome_study"},
    {"_study", "_speech", "_genome", "_export", "_compress"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
# The facade loads names on first use, the plug-in when transformers comes, and __main__ starts the command line: all
# three stand above the rest.
FREE = {"__init__", "__main__", "_plugin"}


def part(path: Path) -> str:
    """The folder, or file, right under the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> list[str]:
    """Every module of ours that a file names in an import."""
    modules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
    return [module for module in modules if module.split(".")[0] == "greenformers"]


def faults(source: str, home: str) -> list[str]:
    """Imports of a file of part `home` that run back, or to another part on the same level."""
    targets = [module.split(".")[1] for module in imported(ast.parse(source)) if "." in module]
    return [to for to in targets if to in LEVEL and to != home and LEVEL[to] >= LEVEL[home]]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    home = part(path)
    if home in FREE:
        return
    assert home in LEVEL, f"{home} has no place in the order"
    assert faults(path.read_text(), home) == []


def test_an_import_that_runs_back_is_found() -> None:
    assert faults("from greenformers.train.fit import fit", "model") == ["train"]
    assert faults("def f():\n    import greenformers.report.page", "measure") == ["report"]
    assert faults("from greenformers import cli", "report") == ["cli"]
    assert faults("from greenformers.attention import build", "lowrank") == ["attention"]
    assert faults("from greenformers.attention import build", "model") == []


@pytest.mark.parametrize("path", sorted((PACKAGE / "attention").glob("*.py")), ids=lambda path: path.name)
def test_siblings_import_no_sibling(path: Path) -> None:
    parts = [module.split(".") for module in imported(ast.parse(path.read_text()))]
    siblings = {names[2] for names in parts if names[1] == "attention" and len(names) > 2}
    assert all(name.startswith("_") or name[0].isupper() for name in siblings)


@pytest.mark.parametrize("folder", ["attention", "lowrank"])
def test_mechanisms_need_only_torch_and_jaxtyping(folder: str) -> None:
    allowed = {"torch", "jaxtyping", "greenformers"} | sys.stdlib_module_names
    for path in (PACKAGE / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, path.name
