"""The folder of commands is their registry: a file is a command, and nothing else has to know of it."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from command_line import run
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from greenformers import cli

HOME = Path(cli.__file__).parent
SUBFOLDERS = [HOME, *(path.parent for path in HOME.rglob("*/__init__.py"))]
COMMAND = '''
"""A command that somebody added."""

from typing import Annotated

import typer


def wave_hello(name: Annotated[str, typer.Option(help="Whom to greet.")] = "you") -> None:
    """Greet a name."""
    print(f"hello {name}")
'''


def group(folder: Path) -> TyperGroup:
    """The command line of a folder."""
    command = get_command(cli.application())
    for name in folder.relative_to(HOME).parts:
        command = cast(TyperGroup, command).commands[name]
    return cast(TyperGroup, command)


def commands(folder: Path = HOME) -> Iterator[tuple[str, TyperCommand]]:
    """Every command, with the words that call it."""
    for name, command in group(folder).commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(folder / name)
        else:
            words = [*folder.relative_to(HOME).parts, name]
            yield " ".join(words), cast(TyperCommand, command)


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda part: part if isinstance(part, str) else "")
def test_the_examples_of_a_command_can_be_typed(name: str, command: TyperCommand) -> None:
    heading, *examples = (command.epilog or "").replace("\\[", "[").split("\n\n")
    assert heading == "Examples:"
    assert examples
    for example in examples:
        words = shlex.split(example)
        assert words[0] == "greenformers"
        assert " ".join(words[1:]).startswith(name)
        command.make_context(name, words[1 + len(name.split()) :]).close()


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder beside that of the commands, with one file."""
    (tmp_path / "wave_hello.py").write_text(COMMAND)
    (tmp_path / "_shared.py").write_text("raise AssertionError\n")
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("greenformers.cli.wave_hello", None)


@pytest.mark.parametrize("folder", SUBFOLDERS, ids=lambda folder: folder.name)
def test_each_file_is_a_command_of_its_name(folder: Path) -> None:
    files = [path for path in folder.iterdir() if not path.name.startswith(("_", "."))]
    assert files
    commands = group(folder).commands
    assert {name.replace("-", "_") for name in commands} == {path.stem for path in files}
    for path in files:
        command = commands[path.stem.replace("_", "-")]
        assert isinstance(command, TyperGroup if path.is_dir() else TyperCommand)
        assert command.help, path


@pytest.mark.parametrize("folder", SUBFOLDERS, ids=lambda folder: folder.name)
def test_help_lists_all_of_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(monkeypatch, *folder.relative_to(HOME).parts, "--help") == 0
    rows = [line.strip("│ ").split("  ") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    shown = {row[0]: row[-1].strip() for row in rows}
    for name, command in group(folder).commands.items():
        assert shown[name]
        assert (command.help or "").startswith(shown[name].split(".")[0])


def test_a_file_that_is_dropped_in_is_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], added: Path
) -> None:
    assert run(monkeypatch, "--help") == 0
    shown = capsys.readouterr().out
    assert "Greet a name." in shown
    # It says no order: it comes after the files that do.
    assert list(group(HOME).commands)[-3:] == ["wave-hello", "speech", "genome"]
    assert run(monkeypatch, "wave-hello", "--name", "world") == 0
    assert capsys.readouterr().out == "hello world\n"
    (added / "wave_hello.py").unlink()
    assert "wave-hello" not in group(HOME).commands


def test_help_starts_with_what_comes_first() -> None:
    commands = list(group(HOME).commands)
    assert commands[:3] == ["recommend", "compress", "changes"]
    assert commands[-2:] == ["speech", "genome"]


def test_the_commands_import_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "numpy", "scipy", "sklearn", "matplotlib", "pysam", "soundfile"}
    code = f"import sys; from greenformers.cli import application; application(); print(*{heavy} & set(sys.modules))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == []


@pytest.mark.parametrize("words", [["compare", "--hiden", "8"], ["genome", "encode", "--refrence", "a.fa"], ["compar"]])
def test_what_is_mistyped_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(monkeypatch, *words) == 2
    error = capsys.readouterr().err
    mistyped = next(word for word in reversed(words) if word.startswith("--") or word == "compar")
    assert mistyped in error
    assert {"--hiden": "--hidden", "--refrence": "--reference", "compar": "compare"}[mistyped] in error


def test_the_version_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import greenformers

    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"greenformers {greenformers.__version__}\n"


@pytest.mark.parametrize(
    ("words", "held", "inside"),
    [
        (["compress", "--help"], ["compress"], {}),
        (["genome", "study", "length"], ["genome"], {"genome": ["study"]}),
        (["genome"], ["genome"], {"genome": list(group(HOME / "genome").commands)}),
        (["--help"], list(group(HOME).commands), {"genome": [], "speech": []}),
        (["compres"], list(group(HOME).commands), {"genome": []}),
    ],
)  # fmt: skip
def test_a_command_line_imports_what_it_names(words: list[str], held: list[str], inside: dict[str, list[str]]) -> None:
    commands = cast(TyperGroup, get_command(cli.application(words))).commands
    assert list(commands) == held
    for name, within in inside.items():
        assert list(cast(TyperGroup, commands[name]).commands) == within
