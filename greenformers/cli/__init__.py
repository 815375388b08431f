"""The command line: this folder is the registry of commands.

A command is a file that holds a function of the same name; a folder of such files is a command with subcommands, and
its docstring is their help. `ORDER` is the place of a command in --help, files before folders; commands without it come
last, by name. `GROUP` is the heading above a command, and `EXAMPLES` are command lines at the end of its own --help.
`SEVERAL` is true of a command that several processes, started by torchrun, work on together; others refuse them.
Files that begin with an underscore are shared by commands. Heavy imports are inside the functions, and a command line
imports only the files that it names, so that --help answers at once.
"""

import sys
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Annotated

import typer

from greenformers._extras import MissingExtraError
from greenformers.train.processes import alone

OF_OTHERS = warnings.formatwarning
"""How Python writes what packages warn of."""

HELP = "A transformer goes in; a measured, greener transformer comes out."


def application(words: Sequence[str] | None = None) -> typer.Typer:
    """The application with the commands of this folder.

    Args:
        words: Words of a command line, for which only the command that it names is imported, or where it names none,
            only the `__init__` of folders; None for all commands.
    """
    app = _folder(sys.modules[__name__], HELP, words)
    app.callback()(_program)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"greenformers {version('greenformers')}")
        raise typer.Exit


def _program(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


def _folder(package: ModuleType, about: str | None, words: Sequence[str] | None) -> typer.Typer:
    app = _empty(about)
    names = {name.replace("_", "-"): name for name in _names(package)}
    named = names.get(words[0]) if words else None
    for name, module in _modules(package, [named] if named else names.values()):
        shown = name.replace("_", "-")
        if hasattr(module, "__path__"):
            needed = words is None or named is not None
            inner = _folder(module, module.__doc__, words and words[1:]) if needed else _empty(module.__doc__)
            app.add_typer(inner, name=shown, rich_help_panel=_group(module))
        else:
            if named and not getattr(module, "SEVERAL", False) and not alone():
                raise ValueError(f"{shown} is the work of one process: start it without torchrun")
            command = app.command(shown, epilog=_examples(module), rich_help_panel=_group(module))
            command(getattr(module, name))
    return app


def _empty(about: str | None) -> typer.Typer:
    return typer.Typer(help=about, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _group(module: ModuleType) -> str | None:
    """The heading above a command in --help; None for typer's default heading."""
    return getattr(module, "GROUP", None)


def _examples(module: ModuleType) -> str | None:
    """The examples below the options of a command, each on a line of its own; None without examples."""
    examples = getattr(module, "EXAMPLES", ())
    # Rich joins lines that have no empty line between them, and reads unescaped brackets as markup.
    return "\n\n".join(["Examples:", *examples]).replace("[", r"\[") if examples else None


def _names(package: ModuleType) -> list[str]:
    """Names of the commands in a package, without the files that commands share."""
    return [module.name for module in iter_modules(package.__path__) if not module.name.startswith("_")]


def _modules(package: ModuleType, names: Iterable[str]) -> list[tuple[str, ModuleType]]:
    """The modules of these commands, by name, in the order of --help."""
    modules = [(name, import_module(f"{package.__name__}.{name}")) for name in names]
    return sorted(modules, key=lambda named: (getattr(named[1], "ORDER", sys.maxsize), named[0]))


def main() -> None:
    """Run the command line; an error that a user can correct is printed on one line, with exit code 2.

    What this package warns of is one line too, without the line of code that it comes from.
    """
    warnings.formatwarning = _formatted
    try:
        application(sys.argv[1:])()
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except (ValueError, MissingExtraError) as error:
        _fail(str(error))


def _fail(message: str) -> None:
    print(f"greenformers: {_printable(message)}", file=sys.stderr)
    sys.exit(2)


def _formatted(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    if issubclass(category, UserWarning) and Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"greenformers: {_printable(str(message))}\n"
    return OF_OTHERS(message, category, filename, lineno, line)


def _printable(message: str) -> str:
    """The message on one line; a file name may hold control characters, which move the cursor."""
    return "".join(letter for letter in " ".join(message.split()) if letter.isprintable())
