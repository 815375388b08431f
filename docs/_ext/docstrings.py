"""Docstrings of the package as reStructuredText: they are written to be read in an editor, and use no markup of it.

Names in backticks become code, an indented block below a blank line is shown as it is, and what reStructuredText would
take for markup (stars, bars, underscores at the end of a word) is escaped.
"""

import re
from typing import Any

SECTIONS = re.compile(r"\s*(Args|Returns|Raises|Yields|Attributes|Example|Examples|Note):$")
OPTION = re.compile(r"(?<![\w`-])(--[a-z][a-z0-9-]*)(?!\w)")
MARKUP = re.compile(r"([*|\\])|(?<=\w)(_)(?!\w)")
FENCED = re.compile(r"(`+[^`]*`+)")


def escaped(line: str) -> str:
    """One line of prose, its code marked as such."""
    parts = FENCED.split(line)
    return "".join(
        f"``{part.strip('`')}``" if part.startswith("`") else OPTION.sub(r"``\1``", MARKUP.sub(r"\\\1\2", part))
        for part in parts
    )


def indent(line: str) -> int:
    """How far a line is indented."""
    return len(line) - len(line.lstrip())


def process(app: Any, kind: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Make of a docstring, in place, what autodoc reads without a warning."""
    output: list[str] = []
    in_section, literal, quoted = False, False, False
    for at, line in enumerate(lines):
        before = lines[at - 1] if at else ""
        if SECTIONS.match(line):
            in_section = True
        elif line.strip() and not indent(line):
            in_section = False
        if line.strip() and not indent(line):
            literal = False
        if indent(line) >= 4 and not before.strip() and not in_section and not literal and output:
            literal = True
            output += ["::", ""]
        starts = line.lstrip().startswith(">>> ")
        quoted = starts or (quoted and bool(line.strip()))
        if quoted and output and output[-1].strip() and not before.lstrip().startswith((">>> ", "... ")) and starts:
            output.append("")
        output.append(line if literal or quoted else escaped(line))
    lines[:] = output


def setup(app: Any) -> dict[str, bool]:
    """Run before napoleon, which reads the sections."""
    app.connect("autodoc-process-docstring", process, priority=100)
    return {"parallel_read_safe": True}
