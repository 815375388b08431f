"""ListOps: the value by a stack and by recursion, the published distribution, files in both layouts."""

import lzma
import random
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean, median, stdev

import pytest

from greenformers.data import listops, load

SHARED = Path(__file__).parents[2].parent / "shared/data/listops"
SMALL = {"shortest": 4, "longest": 40, "depth": 5, "arguments": 5}


def value(tokens):
    """The value of the expression that the tokens start with, which is taken off them: the definition, by recursion."""
    head = tokens.pop(0)
    if head.isdecimal():
        return int(head)
    values = []
    while tokens[0] != "]":
        values.append(value(tokens))
    tokens.pop(0)
    return {"[MAX": max(values), "[MIN": min(values), "[MED": int(median(values)), "[SM": sum(values) % 10}[head]


def by_recursion(expression):
    tokens = expression.split()
    result = value(tokens)
    assert not tokens
    return result


def levels(expression):
    """Levels of an expression, that of the digits being one."""
    opened = deepest = 0
    for token in expression.split():
        opened += (token in listops.OPERATORS) - (token == "]")
        deepest = max(deepest, opened)
    return deepest + 1


def arguments(expression):
    """Number of arguments of every operator."""
    counts, opened = [], [0]
    for token in expression.split():
        if token == "]":
            counts.append(opened.pop())
        else:
            opened[-1] += 1
            if token in listops.OPERATORS:
                opened.append(0)
    return counts


def by_root(data):
    """The commonest value of each first operator in the training split, and how often it is that of a test one."""
    values = defaultdict(Counter)
    for (text,), label in zip(data.train.texts, data.train.labels, strict=True):
        values[text.split()[0]][label] += 1
    best = {name: counts.most_common(1)[0][0] for name, counts in values.items()}
    hits = [best[text.split()[0]] == label for (text,), label in zip(data.test.texts, data.test.labels, strict=True)]
    return best, 100 * fmean(hits)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("7", 7),
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[MIN 2 9 [SM 4 7 ] 3 ]", 1),
        ("[MED 1 2 ]", 1),  # the half is cut off
        ("[MED 9 2 8 3 ]", 5),
        ("[MED 5 9 0 ]", 5),
        ("[SM 9 9 [MED 3 3 4 9 ] ]", 1),
    ],
)
def test_values(expression, expected):
    assert listops.evaluate(expression) == by_recursion(expression) == expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("[AVG 1 2 ]", "expression must be operators, digits and brackets that match, got '[AVG'"),
        ("1 ]", "expression must be operators, digits and brackets that match, got ']'"),
        ("[MAX ]", "expression must be operators, digits and brackets that match, got ']'"),
        ("[MAX 10 ]", "expression must be operators, digits and brackets that match, got '10'"),
        ("1 2", "expression must have one value, got 2 and 0 open brackets"),
        ("[MAX 1 [MIN 2 ]", "expression must have one value, got 0 and 1 open brackets"),
        ("", "expression must have one value, got 0 and 0 open brackets"),
    ],
)
def test_no_expression(expression, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        listops.evaluate(expression)
    assert str(caught.value) == message


def test_expressions_are_within_the_sizes():
    data = listops.generate(train=701, valid=53, test=101, **SMALL)
    splits = [data.train, data.valid, data.test]
    assert [len(split) for split in splits] == [701, 53, 101]
    texts = [text for split in splits for (text,) in split.texts]
    assert len(set(texts)) == len(texts)  # none is twice in a split, or in two
    assert [label for split in splits for label in split.labels] == [by_recursion(text) for text in texts]
    assert {len(text.split()) for text in texts} >= {4, 5, 39, 40}
    assert {len(text.split()) for text in texts} <= set(range(4, 41))
    assert {levels(text) for text in texts} == {2, 3, 4, 5}
    assert {count for text in texts for count in arguments(text)} == {2, 3, 4, 5}
    assert {token for text in texts for token in text.split()} == listops.TOKENS


def test_the_seed_alone_decides():
    first, again, other = (listops.generate(train=31, valid=3, test=7, seed=seed, **SMALL) for seed in (5, 5, 6))
    assert (first.train.texts, first.test.texts) == (again.train.texts, again.test.texts)
    assert first.train.texts != other.train.texts


def test_distribution_is_the_published_one():
    """Against the generator as its paper has it, one node after the other, at lengths where both are quick."""
    source = random.Random(3)

    def node(level):
        if level < 4 and source.random() <= 0.25:
            parts = [node(level + 1) for _ in range(source.randint(2, 7))]
            return [source.choice(["[MIN", "[MAX", "[MED", "[SM"]), *(token for part in parts for token in part), "]"]
        return [str(source.randint(0, 9))]

    expected = []
    while len(expected) < 1500:
        tokens = node(1)
        if 10 <= len(tokens) <= 60:
            expected.append(" ".join(tokens))
    data = listops.generate(train=1500, valid=0, test=0, shortest=10, longest=60, depth=4, arguments=7)
    drawn = [text for (text,) in data.train.texts]
    for measure in (lambda text: len(text.split()), levels, lambda text: fmean(arguments(text)), by_recursion):
        ours, theirs = ([measure(text) for text in texts] for texts in (drawn, expected))
        assert abs(fmean(ours) - fmean(theirs)) < 4 * stdev(theirs) * (2 / 1500) ** 0.5
    roots = Counter(text.split()[0] for text in drawn)
    assert all(abs(count - 375) < 4 * (1500 * 3 / 16) ** 0.5 for count in roots.values())


def test_long_expressions_and_what_the_first_operator_tells():
    data = listops.generate(train=300, valid=0, test=150)
    texts = [text for (text,) in data.train.texts + data.test.texts]
    lengths = [len(text.split()) for text in texts]
    assert 501 <= min(lengths) < 560
    assert 1_800 < max(lengths) <= 1_999
    assert 950 < fmean(lengths) < 1_130
    assert {levels(text) for text in texts} <= {9, 10}
    best, accuracy = by_root(data)
    assert (best["[MAX"], best["[MIN"]) == (9, 0)
    assert 24 < accuracy < 50  # 36 % of many


def test_files_are_read_as_they_were_written(tmp_path):
    data = listops.generate(train=13, valid=5, test=7, **SMALL)
    listops.write(tmp_path / "new", data)
    assert (tmp_path / "new/basic_val.tsv").read_text().splitlines()[0] == "Source\tTarget"
    read = load("listops", tmp_path / "new")
    for name in ("train", "valid", "test"):
        assert read.split(name).texts == data.split(name).texts
        assert read.split(name).labels == data.split(name).labels
    assert read.classes == tuple("0123456789")


def test_published_files(tmp_path):
    (tmp_path / "basic_train.tsv").write_text("Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n( ( ( [SM 1 ) 2 ) ] )\t3\n")
    (tmp_path / "basic_test.tsv.xz").write_bytes(lzma.compress(b"Source\tTarget\n7\t7\n"))
    data = load("listops", tmp_path)
    assert data.train.texts == [("[MAX 2 9 ]",), ("[SM 1 2 ]",)]
    assert data.train.labels == [9, 3]
    assert (len(data.valid), data.test.texts) == (0, [("7",)])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("basic_train.tsv", "a\tb\n", "basic_train.tsv, line 1: the header must name Source"),
        ("basic_val.tsv", "Source\tTarget\n[MAX 1 2 ]\t12\n", "basic_val.tsv, line 2: the label must be one of 0, 1,"),
        ("train_d20s.tsv", "3\t( [AVG 1 ) 5 ]\n", "train_d20s.tsv, line 1: the expression must consist of [MAX, [MIN,"),
        ("test_d20s.tsv", "3\t( )\n", "test_d20s.tsv, line 1: the expression must consist of [MAX, [MIN, [MED, [SM, ]"),
        ("other.tsv", "", "listops needs basic_train.tsv, basic_val.tsv, basic_test.tsv, or train_d20s.tsv and test_"),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(FileNotFoundError if name == "other.tsv" else ValueError) as caught:
        load("listops", tmp_path)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shortest": 3}, "shortest must be at least 4, got 3"),
        ({"longest": 500}, "longest must be at least 501, got 500"),
        ({"depth": 1}, "depth must be at least 2, got 1"),
        ({"arguments": 1}, "arguments must be at least 2, got 1"),
        ({"valid": -1}, "valid must be at least 0, got -1"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_sizes_out_of_range(options, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        listops.generate(**options)
    assert str(caught.value) == message


def test_too_few_expressions(monkeypatch):
    monkeypatch.setattr(listops, "PATIENCE", 3_000)
    message = "401 expressions of 4 to 4 tokens, 2 levels and 2 arguments are asked for, 400 were drawn in all"
    with pytest.raises(ValueError, match=f"^{message}$"):
        listops.generate(train=400, valid=0, test=1, shortest=4, longest=4, depth=2, arguments=2)


def test_the_original_test():
    if not SHARED.is_dir():
        pytest.skip("shared/data/listops is not beside the repository on this machine")
    data = load("listops", SHARED)
    assert [len(split) for split in (data.train, data.valid, data.test)] == [0, 0, 10_000]
    texts = [text for (text,) in data.test.texts]
    assert [listops.evaluate(text) for text in texts[::5]] == data.test.labels[::5]
    assert [by_recursion(text) for text in texts[:200]] == data.test.labels[:200]
    # Of the same tokens and operators as ours, and far shorter: 1 of 250 has more than 500 tokens.
    assert {token for text in texts for token in text.split()} == listops.TOKENS
    assert Counter(len(text.split()) > 500 for text in texts)[True] < 50
    assert max(count for text in texts for count in arguments(text)) == 5
