"""Pages made from the package: commands, changes, and the files of each folder that is a registry.

They are written to `reference/made/` before the site is read, and only where their content changes, so that a second
build reads nothing twice. Nothing is listed here by name: a new file of a folder has its page at the next build.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

import greenformers
from greenformers import attention, blocks, changes, depth, feed_forward, position
from greenformers.attention import Shape
from greenformers.changes._options import as_text, default
from greenformers.cli import application

PACKAGE = Path(greenformers.__file__).parent
FOLDERS = {
    "attention": ("Attention", attention),
    "blocks": ("Blocks", blocks),
    "depth": ("Depth", depth),
    "feed_forward": ("Feed-forward", feed_forward),
    "position": ("Positions", position),
}
OPTION = re.compile(r"(?<![\w`-])(--[a-z][a-z0-9-]*)")
ESCAPED = re.compile(r"([*_|<\[\]~$^\\])")
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def prose(text: str) -> str:
    """A docstring as Markdown: what would be markup is escaped, papers are links."""
    parts = re.split(r"(`[^`]*`)", text)
    plain = [part if part.startswith("`") else OPTION.sub(r"`\1`", ESCAPED.sub(r"\\\1", part)) for part in parts]
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", "".join(plain))


def cell(text: str) -> str:
    """The same in one line of a table."""
    return " ".join(prose(text).split())


def docstring(path: Path) -> str:
    """What a file says of itself."""
    return ast.get_docstring(ast.parse(path.read_text())) or ""


# Folders that are registries.


def causal(name: str) -> str:
    """Whether a mechanism can be built so that a position sees no later one."""
    try:
        attention.build(name, Shape(heads=2, head_dim=8, max_len=64, causal=True))
    except ValueError:
        return "no"
    return "yes"


def first(text: str) -> tuple[str, str]:
    """Source and description in the first paragraph of a file: "Linformer. Wang 2020, ...: softmax(...)"."""
    line = " ".join(text.split("\n\n")[0].split())
    source, colon, description = re.sub(r"arXiv:(\d)", r"arXiv;\1", line).partition(": ")
    return (source if colon else line).replace("arXiv;", "arXiv:"), description.replace("arXiv;", "arXiv:")


def cost(text: str) -> str:
    """What a file says of its time."""
    match = re.search(r"[Tt]ime(?: and memory)? (O\([^.,;:]+?\)(?:\)|(?=[ ,.;])))", " ".join(text.split()))
    return match[1] if match else ""


def registry(folder: str) -> Iterator[tuple[str, str]]:
    """The page of a folder, and one for each of its files."""
    title, package = FOLDERS[folder]
    names = [name for name in package.names() if (PACKAGE / folder / f"{name}.py").is_file()]
    about = {name: docstring(PACKAGE / folder / f"{name}.py") for name in names}
    of_attention = folder == "attention"
    head = ["name", "source"] + ["time", "causal"] * of_attention
    rows = [
        [f"[`{name}`]({folder}/{name}.md)", cell(first(about[name])[0])]
        + [cell(cost(about[name])), causal(name)] * of_attention
        for name in names
    ]
    lines = [
        f"# {title}", "", f"Each is one file of `greenformers/{folder}/`, and has the name of the file: the folder is",
        f"the registry. This page is made from the folder, {len(names)} files.", "",
        "| " + " | ".join(head) + " |", "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "", "```{toctree}", ":hidden:", "", *(f"{folder}/{name}" for name in names), "```", "",
    ]  # fmt: skip
    yield f"{folder}.md", "\n".join(lines)
    for name in names:
        yield f"{folder}/{name}.md", entry(folder, name, about[name])


def entry(folder: str, name: str, about: str) -> str:
    """The page of one file: what it says, its class and options, and the formula it is tested against."""
    source = (PACKAGE / folder / f"{name}.py").read_text()
    lines = [f"# `{name}`", "", prose(about), "", f"Source: `greenformers/{folder}/{name}.py`.", ""]
    kind = name.title().replace("_", "")
    if re.search(rf"^class {kind}\b", source, re.MULTILINE):
        lines += ["## The class", "", "```{eval-rst}", f".. autoclass:: greenformers.{folder}.{name}.{kind}", "```", ""]
    if re.search(r"^def reference\(", source, re.MULTILINE):
        up = "../" * 3
        lines += [
            "## The formula", "", "The tests compare outputs and gradients of the class with this function.", "",
            f"```{{literalinclude}} {up}../greenformers/{folder}/{name}.py", ":pyobject: reference", "```", "",
        ]  # fmt: skip
    return "\n".join(lines)


# Changes of a trained model.


def change_pages() -> Iterator[tuple[str, str]]:
    """The page of all changes, and one for each."""
    kinds = changes.kinds()
    rows = []
    for kind in kinds:
        short = kind.flag or next((e.metadata["flag"] for e in fields(kind) if e.metadata.get("flag")), "")
        rows.append(f"| [`{kind.name()}`](changes/{kind.name()}.md) | {cell(summary(kind))} | `{short}` |")
    lines = [
        "# Changes", "", "What can be done to a trained model, in the order in which the short forms of the command",
        "apply them. Each is one file of `greenformers/changes/`; this page is made from the folder. How to use them",
        "is in [Compress a trained model](../../compress.md).", "",
        "| name | what it does | first short form |", "|---|---|---|", *rows,
        "", "```{toctree}", ":hidden:", "", *(f"changes/{kind.name()}" for kind in kinds), "```", "",
    ]  # fmt: skip
    yield "changes.md", "\n".join(lines)
    for kind in kinds:
        yield f"changes/{kind.name()}.md", change_page(kind)


def summary(kind: Any) -> str:
    """The first line of a docstring."""
    return (kind.__doc__ or "").splitlines()[0]


def change_page(kind: Any) -> str:
    """The page of one change, with its options."""
    name, path = kind.name(), PACKAGE / "changes" / f"{kind.name()}.py"
    lines = [
        f"# `{name}`", "", prose(docstring(path)), "", f"In Python it is `greenformers.changes.{kind.__name__}`, in a",
        f'recipe `name = "{name}"`, on the command line `--change "{name} option=value"`'
        + (f" or `{kind.flag}`." if kind.flag else "."), "", "## Options", "",
    ]  # fmt: skip
    for each in fields(kind):
        flag = each.metadata.get("flag")
        beside = [f"default `{as_text(default(each)) or 'none'}`"] + ([f"short form `{flag}`"] if flag else [])
        lines += [f"`{each.name}` ({', '.join(beside)})", f": {cell(each.metadata['help'])}", ""]
    if not fields(kind):
        lines += ["It has none.", ""]
    return "\n".join(lines)


# Commands.


def command_pages() -> Iterator[tuple[str, str]]:
    """A page for each command, from what its `--help` is made of."""
    root = get_command(application())
    pages = list(walk(root, ("greenformers",)))
    rows = [f"| [`{' '.join(path)}`](cli/{slug(path)}.md) | {cell(said(command))} |" for path, command in pages]
    lines = [
        "# Commands", "", "Each page holds what `greenformers COMMAND --help` prints. What a user can mend is one line",
        "on stderr and exit code 2.", "", "| command | what it does |", "|---|---|", *rows,
        "", "```{toctree}", ":hidden:", "", *(f"cli/{slug(path)}" for path, _ in pages), "```", "",
    ]  # fmt: skip
    yield "cli.md", "\n".join(lines)
    for path, command in pages:
        yield f"cli/{slug(path)}.md", command_page(path, command)


def slug(path: tuple[str, ...]) -> str:
    """The name of a command's page."""
    return "-".join(path[1:])


def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands that do something, those of groups too."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from walk(inner, (*path, name))
    else:
        yield path, command


def said(command: Any) -> str:
    """The first paragraph of a command's help."""
    return (command.help or "").split("\n\n")[0]


def command_page(path: tuple[str, ...], command: Any) -> str:
    """The page of one command: usage, help, arguments and options."""
    words = [p.name.upper() for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([*path, *words, "[OPTIONS]"])
    lines = [f"# {' '.join(path)}", "", "```text", usage, "```", "", prose(command.help or ""), ""]
    panels: dict[str, list[Any]] = {}
    for each in command.params:
        if not getattr(each, "hidden", False) and each.name != "help":
            argument = each.param_type_name == "argument"
            panel = "Arguments" if argument else getattr(each, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append(each)
    for panel, parameters in panels.items():
        lines += [f"## {panel}", ""]
        for each in parameters:
            about = (getattr(each, "help", None) or "As the command's help says.").replace("\\[", "[")
            lines += [term(each), f": {cell(about)}", ""]
    return "\n".join(lines)


def term(parameter: Any) -> str:
    """A parameter as it is typed, its default, and what it takes where that is one of a few words."""
    if parameter.param_type_name == "argument":
        shown = parameter.name.upper()
    else:
        shown = " / ".join([*parameter.opts, *parameter.secondary_opts])
    beside = ["required"] if parameter.required else []
    value = parameter.default
    if isinstance(value, str | int | float | Path | Enum) and value != "" and value is not False:
        beside.append(f"default `{getattr(value, 'value', value)}`")
    kind = parameter.type_descriptor.annotation
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = tuple(each.value for each in kind)
    if choices:
        beside.append("one of " + ", ".join(f"`{each}`" for each in choices))
    return f"`{shown}`" + (f" ({'; '.join(beside)})" if beside else "")


def write(app: Any) -> None:
    """Write all pages that are not as they should be, and take away those of what is gone."""
    place = Path(app.srcdir) / "reference" / "made"
    pages = dict(page for source in (*map(registry, FOLDERS), change_pages(), command_pages()) for page in source)
    for old in place.rglob("*.md"):
        if str(old.relative_to(place)) not in pages:
            old.unlink()
    for name, text in pages.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def setup(app: Any) -> dict[str, bool]:
    """Write the pages before the sources are listed."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
