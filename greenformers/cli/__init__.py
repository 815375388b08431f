"""The command line: this folder is the registry of commands.

A command is a file that holds a function of its name; a folder of such files is a command with commands of its own, and
its docstring is their help. `ORDER` says where one stands in --help, files before folders; those without it come last,
by name. `GROUP` is the heading above it, and `EXAMPLES` are command lines that its own --help ends with. What begins
with an underscore is shared by commands. Heavy imports are inside the functions, so that --help answers at once.
"""

import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import typer

from greenformers._extras import MissingExtraError

HELP = "A transformer goes in; a measured, greener transformer comes out."


def application() -> typer.Typer:
    """The commands that are in the folder now."""
    return _folder(sys.modules[__name__], HELP)


def _folder(package: ModuleType, about: str | None) -> typer.Typer:
    app = typer.Typer(help=about, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    for name, module in _modules(package):
        shown = name.replace("_", "-")
        if hasattr(module, "__path__"):
            app.add_typer(_folder(module, module.__doc__), name=shown, rich_help_panel=_group(module))
        else:
            command = app.command(shown, epilog=_examples(module), rich_help_panel=_group(module))
            command(getattr(module, name))
    return app


def _group(module: ModuleType) -> str | None:
    """The heading under which --help lists a command; of a command without one, typer's."""
    return getattr(module, "GROUP", None)


def _examples(module: ModuleType) -> str | None:
    """Examples, one a line, below the options of a command."""
    examples = getattr(module, "EXAMPLES", ())
    # An empty line keeps two lines apart, and unescaped brackets would be markup.
    return "\n\n".join(["Examples:", *examples]).replace("[", r"\[") if examples else None


def _modules(package: ModuleType) -> list[tuple[str, ModuleType]]:
    """What is in a package, by name, in the order of --help."""
    names = [module.name for module in iter_modules(package.__path__) if not module.name.startswith("_")]
    modules = [(name, import_module(f"{package.__name__}.{name}")) for name in names]
    return sorted(modules, key=lambda named: (getattr(named[1], "ORDER", sys.maxsize), named[0]))


def main() -> None:
    """Run the command line. What a user can mend is one line and exit code 2."""
    try:
        application()()
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except (ValueError, MissingExtraError) as error:
        _fail(str(error))


def _fail(message: str) -> None:
    # A name may hold what moves the cursor.
    shown = "".join(one for one in " ".join(message.split()) if one.isprintable())
    print(f"greenformers: {shown}", file=sys.stderr)
    sys.exit(2)
