"""Rule 1 of the house: imports run one way, from room to room and from file to file.

An import counts wherever it stands: inside a function it only comes later, and under `if TYPE_CHECKING` a reader still
has to know the other file. What a package's `__init__` imports is that file's; who imports a file of a package does not
thereby depend on its `__init__`.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "greenformers"
ORDER = [
    {"_extras", "_torch", "_tensors", "_registry", "_gradients", "_heap"},
    {"_initial"},
    {"lowrank", "position"},
    {"attention"},
    {"feed_forward"},
    {"blocks", "depth"},
    {"model"},
    {"data"},
    {"measure"},
    {"train"},
    {"solve"},
    {"changes"},
    {"checkpoint"},
    {"compress"},
    {"static"},
    {"export"},
    {"advise"},
    {"search", "arena"},
    {"report"},
    {"speech", "genome"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
# The facade loads names on first use, the plug-in when transformers comes, and __main__ starts the command line: all
# three stand above the rest.
FREE = {"__init__", "__main__", "_plugin"}

Sources = Mapping[str, str]
"""Files by the name they are imported by, "greenformers.model.config" say."""


@cache
def sources() -> Sources:
    return {module(path.relative_to(PACKAGE.parent)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def room(name: str) -> str:
    """The folder of a file; of those right under the package, the commands are `cli`'s until they have moved there."""
    parts = name.split(".")[1:] or ["__init__"]
    return parts[0] if len(parts) > 1 or parts[0] in {*LEVEL, *FREE} else "cli"


@cache
def modules(source: str) -> list[str]:
    """Every name in an import. Expressions, which hold none, are not looked through."""
    names = []
    statements: list[ast.AST] = [ast.parse(source)]
    for node in statements:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        for inner in ("body", "orelse", "handlers", "finalbody", "cases"):
            statements += getattr(node, inner, [])
    return names


def imported(source: str) -> Iterator[str]:
    """Every name of ours in an import, "greenformers.model.config.GreenformerConfig" say."""
    return (name for name in modules(source) if name.split(".")[0] == "greenformers")


def graph(files: Sources) -> dict[str, set[str]]:
    """Each file with those it imports."""
    edges: dict[str, set[str]] = {}
    for name, source in files.items():
        targets = {to if to in files else to.rpartition(".")[0] for to in imported(source)}
        edges[name] = targets & set(files) - {name}
    return edges


@cache
def all_edges() -> dict[str, set[str]]:
    """The graph of all files."""
    return graph(sources())


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """Files in a circle, each beside one that imports it, the first again at the end; none where there is no circle."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def backward(edges: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Imports that run back, or into another room of the same level."""
    return [
        (name, to)
        for name, targets in edges.items()
        for to in sorted(targets)
        if room(name) not in FREE
        if room(name) != room(to)
        if LEVEL[room(name)] <= LEVEL.get(room(to), len(ORDER))
    ]


def test_every_room_has_its_place() -> None:
    assert {room(name) for name in sources()} <= set(LEVEL) | FREE
    assert sum(map(len, ORDER)) == len(LEVEL)  # and one alone


def test_rooms_import_one_way() -> None:
    assert backward(all_edges()) == []


def test_no_files_import_in_a_circle() -> None:
    assert circle(all_edges()) == []


@pytest.mark.parametrize(
    ("source", "home"),
    [
        ("from greenformers.train.fit import fit", "model.config"),
        ("def f():\n    import greenformers.report.page", "measure.record"),
        ("if TYPE_CHECKING:\n    from greenformers.report.page import write", "measure.record"),
        ("from greenformers.cli import app", "report.page"),
        ("from greenformers import cli", "report.page"),
        ("from greenformers import _terminal", "genome.settings"),
        ("from greenformers import compress", "genome.settings"),
        ("from greenformers.attention import build", "lowrank.linear"),
    ],
)
def test_an_import_that_runs_back_is_found(source: str, home: str) -> None:
    names = ["", ".train.fit", ".report.page", ".cli", "._terminal", ".attention"]
    files = {f"greenformers{name}": "" for name in names} | {f"greenformers.{home}": source}
    (edge,) = backward(graph(files))
    assert edge[0] == f"greenformers.{home}"


def test_an_import_of_a_lower_room_is_allowed() -> None:
    files = {"greenformers.attention": "", "greenformers.model.config": "from greenformers.attention import build"}
    assert graph(files)["greenformers.model.config"] == {"greenformers.attention"}
    assert backward(graph(files)) == []


@pytest.mark.parametrize(
    "back",
    [
        "from greenformers.train import a",
        "from greenformers.train.a import A",
        "import greenformers.train.a",
        "def f():\n    from greenformers.train.a import A",
        "if TYPE_CHECKING:\n    from greenformers.train.a import A",
    ],
)
def test_a_circle_inside_a_room_is_found(back: str) -> None:
    there = "from greenformers.train.b import B"
    between = "from greenformers.train.c import C"
    files = {f"greenformers.train.{name}": text for name, text in zip("abc", (there, between, back), strict=True)}
    files["greenformers.train"] = ""
    names = circle(graph(files))
    assert len(names) == 4
    assert names[0] == names[-1]
    assert all(b in graph(files)[a] for b, a in pairwise(names))
    assert circle(graph(files | {"greenformers.train.c": ""})) == []


def test_siblings_import_no_sibling() -> None:
    mechanisms = {name: text for name, text in sources().items() if name.startswith("greenformers.attention.")}
    assert len(mechanisms) > 20
    for name, text in mechanisms.items():
        parts = [target.split(".") for target in imported(text)]
        siblings = {names[2] for names in parts if names[1] == "attention" and len(names) > 2}
        assert all(sibling.startswith("_") or sibling[0].isupper() for sibling in siblings), name


@pytest.mark.parametrize("folder", ["attention", "lowrank"])
def test_mechanisms_need_only_torch_and_jaxtyping(folder: str) -> None:
    allowed = {"torch", "jaxtyping", "greenformers"} | sys.stdlib_module_names
    files = sorted((PACKAGE / folder).glob("*.py"))
    assert files
    for path in files:
        assert {name.split(".")[0] for name in modules(path.read_text())} <= allowed, path.name
