"""`greenformers changes`: the changes that a trained model can have, with all their options."""

from dataclasses import fields
from types import NoneType
from typing import get_origin

from greenformers.changes import Change, kinds
from greenformers.changes._options import as_text, default, types
from greenformers.cli import _terminal as terminal

ORDER = 25
GROUP = "Make a trained model smaller and faster"
EXAMPLES = ("greenformers changes",)


def changes() -> None:
    """List every change of a trained model and its options, for `compress --change` and recipes.

    The last column is the short form of an option in `compress`, where
    it has one.
    """
    from rich.markup import escape
    from rich.table import Column, Table

    console = terminal.console()
    for kind in kinds():
        title = f"{kind.name()}: {(kind.__doc__ or '').splitlines()[0]}"
        table = Table(
            Column("option", no_wrap=True), "type", "default", "meaning", "short form",
            title=escape(title), title_justify="left", expand=False,
        )  # fmt: skip
        for entry in fields(kind):
            table.add_row(
                entry.name, escape(_typed(kind, entry.name)),
                escape(as_text(default(entry))), escape(entry.metadata["help"]), entry.metadata.get("flag") or "",
            )  # fmt: skip
        if not fields(kind):
            table.add_row("(none)", "", "", "", kind.flag or "")
        console.print(table)


def _typed(kind: type[Change], option: str) -> str:
    """The types that an option may have, as they are written in Python."""
    hints = [hint for hint in types(kind)[option] if hint is not NoneType]
    return " or ".join(hint.__name__ if get_origin(hint) is None else str(hint) for hint in hints)
