"""ListOps, what do nested operations on digits give? Nangia and Bowman 2018, arXiv:1804.06028; without parentheses.

    [MAX 2 9 [MIN 4 7 ] 0 ]  ->  9

Operators are MAX, MIN, MED (median, rounded down) and SM (sum modulo 10). Expressions are drawn from

    node(level) = an operator of 2 to 10 times node(level + 1), with probability 1/4 above the last level; else a digit

where operators, numbers of arguments and digits are uniform. Of these, Long Range Arena (Tay et al. 2021,
arXiv:2011.04006) takes expressions of 501 to 1,999 tokens; a digit is one token, an operator with its bracket two.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

from greenformers.data._columns import fetch_labelled
from greenformers.data._files import find
from greenformers.data._kinds import Examples, Labelled
from greenformers.data._labels import class_reader
from greenformers.data._source import choose
from greenformers.data._table import read_table

CLASSES = tuple(map(str, range(10)))
END = "]"
SHARE = 0.25  # of operators among the nodes below the first and above the last level
LEAST = 4  # tokens of the shortest expression, an operator of two digits
PATIENCE = 100_000  # draws in a row without a new expression, after which there are taken to be no more
ARENA = ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv")
ORIGINAL = ("train_d20s.tsv", "", "test_d20s.tsv")

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MAX": max,
    "[MIN": min,
    "[MED": lambda values: (sorted(values)[(len(values) - 1) // 2] + sorted(values)[len(values) // 2]) // 2,
    "[SM": lambda values: sum(values) % 10,
}
"""What an operator gives, by its token."""

TOKENS = frozenset({*OPERATORS, END, *CLASSES})


def load(folder: str | Path | None, dataset: str | None = None) -> Labelled:
    """96,000 / 2,000 / 2,000 expressions as published, of one of 10 classes, the value; or as many as the files have.

    Tokens stand between single spaces; `--tokenizer words` gives each of the 15 an id of its own.

    Args:
        folder: Folder that holds basic_train.tsv, basic_val.tsv and basic_test.tsv, the names of Long Range Arena and
            of `write`, with a header of Source and Target; or the original train_d20s.tsv and test_d20s.tsv, value and
            expression without a header; or some of them, each plain, .gz or .xz. Parentheses are left out.
        dataset: Data set of the `datasets` library, used instead of a folder, with columns text and label.

    Raises:
        ValueError: Both a folder and a dataset are given, or neither; or a file is damaged.
        OSError: The folder, every file or the dataset is missing, or cannot be read.
    """
    source, read_label = choose("listops", folder, dataset), class_reader(CLASSES)
    if isinstance(source, str):
        return fetch_labelled("listops", CLASSES, source, 1, read_label)
    for names, columns in ((ARENA, ("Source", "Target")), (ORIGINAL, ("expression", "value"))):
        paths = [find(source, name) if name else None for name in names]
        if not any(paths):
            continue
        header = None if names is ARENA else ("value", "expression")
        splits = [
            read_table(path, columns[:1], columns[1], read_label, header, _plain) if path else Examples()
            for path in paths
        ]
        return Labelled("listops", CLASSES, *splits)
    raise FileNotFoundError(
        f"listops needs {', '.join(ARENA)}, or {ORIGINAL[0]} and {ORIGINAL[2]}, or some of these as .gz or .xz; "
        f"none is in folder {str(source)!r}"
    )


def _plain(expression: str) -> str:
    """The tokens of an expression, without parentheses and with single spaces."""
    tokens = [token for token in expression.split() if token not in "()"]
    if not tokens or not TOKENS.issuperset(tokens):
        raise ValueError(f"the expression must consist of {', '.join(OPERATORS)}, {END} and digits")
    return " ".join(tokens)


def generate(
    *,
    train: int = 96_000,
    valid: int = 2_000,
    test: int = 2_000,
    shortest: int = 501,
    longest: int = 1_999,
    depth: int = 10,
    arguments: int = 10,
    seed: int = 0,
) -> Labelled:
    """Draw expressions, each another one; by default as many and as long as in Long Range Arena.

    Args:
        train: Number of expressions to train on.
        valid: Number of expressions to validate on.
        test: Number of expressions to test on.
        shortest: Fewest tokens of an expression, at least 4.
        longest: Most tokens of an expression, at least `shortest`.
        depth: Most levels of an expression, the operator in front being one and the innermost digits another.
        arguments: Most arguments of an operator, at least 2.
        seed: Seed of the draw.

    Raises:
        ValueError: An argument is out of its range, or there are not as many expressions.
    """
    sizes = {"train": train, "valid": valid, "test": test}
    limits = {"shortest": (shortest, LEAST), "longest": (longest, shortest), "depth": (depth, 2)}
    limits |= {"arguments": (arguments, 2), "seed": (seed, 0)} | {name: (size, 0) for name, size in sizes.items()}
    for name, (value, least) in limits.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    source = np.random.default_rng(seed)
    # A dictionary keeps the order, so that the splits are draws of one kind.
    expressions: dict[str, int] = {}
    failures = 0
    while len(expressions) < sum(sizes.values()):
        tree = _arguments(source, shortest, longest, depth, arguments)
        expression = None if tree is None else _written(source, tree)
        failures += 1
        if expression is not None and expression not in expressions:
            expressions[expression] = evaluate(expression)
            failures = 0
        elif failures == PATIENCE:
            raise ValueError(
                f"{sum(sizes.values())} expressions of {shortest} to {longest} tokens, {depth} levels and {arguments} "
                f"arguments are asked for, {len(expressions)} were drawn in all"
            )
    items = iter(expressions.items())
    rows = [list(islice(items, size)) for size in sizes.values()]
    splits = [Examples([(text,) for text, _ in part], [label for _, label in part]) for part in rows]
    return Labelled("listops", CLASSES, *splits)


def _arguments(
    source: np.random.Generator, shortest: int, longest: int, depth: int, arguments: int
) -> list[np.ndarray] | None:
    """Number of arguments of every node, 0 for a digit, level by level; None where the length is out of range.

    The first node is an operator, as a digit alone is too short.
    """
    levels: list[np.ndarray] = []
    nodes, length = 1, 0
    while nodes and length <= longest:
        operators = source.random(nodes) < (SHARE if levels else 1)
        if len(levels) == depth - 1:
            operators[:] = False
        levels.append(np.where(operators, source.integers(2, arguments + 1, nodes), 0))
        length += nodes + int(operators.sum())
        nodes = int(levels[-1].sum())
    return levels if shortest <= length <= longest else None


def _written(source: np.random.Generator, levels: list[np.ndarray]) -> str:
    """An expression with these numbers of arguments, written from the last level up."""
    names = list(OPERATORS)
    parts: list[str] = []
    for level in reversed(levels):
        below = iter(parts)
        operators, digits = source.integers(len(names), size=len(level)), source.integers(10, size=len(level))
        parts = [
            " ".join([names[operator], *islice(below, size), END]) if size else str(digit)
            for size, operator, digit in zip(level.tolist(), operators.tolist(), digits.tolist(), strict=True)
        ]
    return parts[0]


def evaluate(expression: str) -> int:
    """The value of an expression, 0..9, by one stack of operators and one of their values so far. O(N).

    Args:
        expression: Tokens with white space between, without parentheses.

    Raises:
        ValueError: A token is unknown, or brackets do not match.
    """
    operators: list[str] = []
    values: list[list[int]] = [[]]
    for token in expression.split():
        if token in OPERATORS:
            operators.append(token)
            values.append([])
        elif token == END and operators and values[-1]:
            value = OPERATORS[operators.pop()](values.pop())
            values[-1].append(value)
        elif token in CLASSES:
            values[-1].append(int(token))
        else:
            raise ValueError(f"expression must be operators, digits and brackets that match, got {token!r}")
    if operators or len(values[0]) != 1:
        raise ValueError(f"expression must have one value, got {len(values[0])} and {len(operators)} open brackets")
    return values[0][0]


def write(folder: str | Path, data: Labelled) -> None:
    """Write expressions as the files that `load` reads; the folder is made where there is none.

    Raises:
        OSError: A file cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, split in zip(ARENA, (data.train, data.valid, data.test), strict=True):
        with (folder / name).open("w", encoding="utf-8", newline="\n") as file:
            file.write("Source\tTarget\n")
            file.writelines(f"{text}\t{label}\n" for (text,), label in zip(split.texts, split.labels, strict=True))
