"""The 66 pairs, both alphabets, and haplotypes against plain lists of symbols."""

import itertools
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import names

from greenformers.genome.diplotype import (
    ALPHABETS,
    DEL,
    PAIR,
    PAIRS,
    SYMBOLS,
    Haplotype,
    decoded,
    diplotype,
    encoded,
    inserted,
    pairs_of,
    places,
    symbols,
    text,
    with_columns,
)

BOTH = pytest.mark.parametrize("alphabet", ["iupac", "thesis"])
REFERENCE = "TATAA"


def code(pair):
    first, second = (SYMBOLS.index(name) for name in pair.split("-"))
    return PAIR[first, second]


def test_pairs():
    assert SYMBOLS == ("A", "C", "G", "T", "N", "AI", "CI", "GI", "TI", "NI", "DEL")
    assert len(PAIRS) == len(set(PAIRS)) == 66
    assert all(first <= second for first, second in PAIRS)
    assert (PAIR == PAIR.T).all()
    assert [PAIR[pair] for pair in PAIRS] == list(range(66))
    assert symbols(np.arange(66, dtype=np.uint8)).tolist() == [list(pair) for pair in PAIRS]


@BOTH
def test_alphabets(alphabet):
    characters = ALPHABETS[alphabet]
    assert len(characters) == len(set(characters)) == 66
    assert all(
        ord(character) < 0x10000 and not character.isspace() and character.isprintable() for character in characters
    )
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert unicodedata.normalize(form, characters) == characters
    codes = np.arange(66, dtype=np.uint8)
    assert text(codes, alphabet) == characters
    assert pairs_of(characters, alphabet).tolist() == codes.tolist()


@pytest.mark.parametrize(
    ("alphabet", "pair", "character"),
    [
        ("thesis", "A-A", "A"), ("thesis", "C-C", "C"), ("thesis", "T-T", "T"), ("thesis", "N-N", "N"),
        ("thesis", "DEL-DEL", "X"), ("thesis", "AI-AI", "B"), ("thesis", "CI-CI", "D"), ("thesis", "GI-GI", "H"),
        ("thesis", "TI-TI", "U"), ("thesis", "NI-NI", "O"), ("thesis", "A-C", "嗄"), ("thesis", "AI-TI", "笔"),
        ("thesis", "T-TI", "拓"), ("thesis", "N-T", "哪"), ("thesis", "GI-N", "蝦"), ("thesis", "GI-T", "虾"),
        ("iupac", "A-A", "A"), ("iupac", "G-G", "G"), ("iupac", "N-N", "N"), ("iupac", "A-C", "M"),
        ("iupac", "A-G", "R"), ("iupac", "A-T", "W"), ("iupac", "C-G", "S"), ("iupac", "C-T", "Y"),
        ("iupac", "G-T", "K"), ("iupac", "TI-TI", "t"), ("iupac", "NI-NI", "n"), ("iupac", "DEL-DEL", "-"),
        ("iupac", "A-N", "一"),
    ],
)  # fmt: skip
def test_characters(alphabet, pair, character):
    assert text(np.array([code(pair)]), alphabet) == character
    assert pairs_of(character, alphabet).tolist() == [code(pair)]


# Figure 5.2: a substitution, an insertion of TGC after position 3, and two positions gone.
CHANGES = {
    "reference": (lambda _: None, "TATAA"),
    "substitution": (lambda haplotype: haplotype.substitute(2, "C"), "TACAA"),
    "insertion": (lambda haplotype: haplotype.insert(3, "TGC"), "TATTGCAA"),
    "deletion": (lambda haplotype: haplotype.delete(2, 2), "TAA"),
}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("reference", "reference", "TATAA"),
        ("reference", "substitution", "TA礤AA"),
        ("reference", "insertion", "TAT需香搭AA"),
        ("reference", "deletion", "TA徐腌A"),
        ("substitution", "substitution", "TACAA"),
        ("substitution", "insertion", "TA礤需香搭AA"),
        ("substitution", "deletion", "TA吃腌A"),
        ("insertion", "insertion", "TATUHDAA"),
        ("insertion", "deletion", "TA徐需香搭腌A"),
        ("deletion", "deletion", "TAXXA"),
    ],
)
def test_figure_5_2(first, second, expected):
    both = []
    for name in (first, second):
        change, sequence = CHANGES[name]
        haplotype = Haplotype(encoded(REFERENCE))
        change(haplotype)
        assert haplotype.sequence() == sequence
        both.append(haplotype)
    pairs = diplotype(*both)
    assert text(pairs, "thesis") == expected
    assert diplotype(*reversed(both)).tolist() == pairs.tolist() == pairs_of(expected, "thesis").tolist()


@st.composite
def spelled(draw, length):
    """A haplotype, and independently its symbols and what is inserted where."""
    some = st.text("ACGTN", min_size=1, max_size=4)
    own = draw(st.text("ACGTN", min_size=length, max_size=length))
    haplotype, rows, between = Haplotype(encoded(own)), list(own), {}
    for kind in draw(st.lists(st.sampled_from(["substitute", "insert", "delete"]), max_size=5)):
        place = draw(st.integers(0, length))
        new = draw(some)
        if kind == "insert":
            if place not in between:
                haplotype.insert(place, new)
                between[place] = new
            continue
        new = new[: length - place]
        if kind == "substitute":
            haplotype.substitute(place, new.lower())
            rows[place : place + len(new)] = list(new)
        else:
            haplotype.delete(place, len(new))
            rows[place : place + len(new)] = ["DEL"] * len(new)
    return haplotype, rows, between


@st.composite
def two(draw):
    length = draw(st.integers(0, 9))
    return draw(spelled(length)), draw(spelled(length))


def ordered(first, second):
    return "-".join(sorted((first, second), key=SYMBOLS.index))


@settings(deadline=None)
@given(two())
def test_any_two_haplotypes(both):
    columns = []  # position, whether inserted, pair
    length = len(both[0][1])
    for place in range(length + 1):
        sides = [[f"{base}I" for base in between.get(place, "")] for _, _, between in both]
        for number in range(max(map(len, sides))):
            first, second = (side[number] if number < len(side) else "DEL" for side in sides)
            columns.append((place - 1, True, ordered(first, second)))
        if place < length:
            columns.append((place, False, ordered(both[0][1][place], both[1][1][place])))

    pairs = diplotype(both[0][0], both[1][0])
    assert pairs.dtype == np.uint8
    assert names(pairs) == [pair for _, _, pair in columns]
    assert inserted(pairs).tolist() == [between for _, between, _ in columns]
    assert places(pairs).tolist() == [place for place, _, _ in columns]
    for alphabet in ALPHABETS:
        written = text(pairs, alphabet)
        assert len(written) == len(columns)
        assert pairs_of(written, alphabet).tolist() == pairs.tolist()
    for haplotype, rows, between in both:
        parts = [between.get(place, "") + (rows[place] if place < length else "") for place in range(length + 1)]
        assert haplotype.sequence() == "".join(parts).replace("DEL", "")


@settings(max_examples=50)
@given(two(), st.data())
def test_parts_make_the_whole(both, data):
    """A diplotype of parts is a part of the diplotype."""
    haplotypes = [haplotype for haplotype, _, _ in both]
    length = len(haplotypes[0].bases)
    cuts = data.draw(st.lists(st.integers(1, length - 1), max_size=4, unique=True)) if length > 1 else []
    parts = [
        [haplotype.part(start, end) for haplotype in haplotypes]
        for start, end in itertools.pairwise([0, *sorted(cuts), length])
    ]
    for number, whole in enumerate(haplotypes):
        assert "".join(part[number].sequence() for part in parts) == whole.sequence()
    assert "".join(text(diplotype(*part)) for part in parts) == text(diplotype(*haplotypes))


def test_bases():
    assert encoded("ACGTNacgtnRYUé*-").tolist() == [0, 1, 2, 3, 4] * 2 + [4] * 6
    assert encoded("嗄").tolist() == [4]
    assert decoded(encoded("gattacaN")) == "GATTACAN"
    assert encoded("").tolist() == []
    assert decoded(encoded("")) == ""


def test_columns_between_positions():
    pairs = np.array([code("A-A"), code("C-C")])
    assert with_columns(pairs, {}) is pairs
    columns = with_columns(pairs, {2: np.array([code("NI-NI")]), 0: np.array([code("AI-DEL"), code("DEL-TI")])})
    assert names(columns) == ["AI-DEL", "TI-DEL", "A-A", "C-C", "NI-NI"]


@pytest.mark.parametrize(
    ("change", "place", "value", "message"),
    [
        ("substitute", 4, "AC", "positions must be in 0..5, got 4..6"),
        ("substitute", -1, "A", "positions must be in 0..5, got -1..0"),
        ("delete", 0, 6, "positions must be in 0..5, got 0..6"),
        ("delete", 3, -1, "positions must be in 0..5, got 3..2"),
        ("insert", 6, "A", "positions must be in 0..5, got 6..6"),
        ("insert", 5, "", "bases must be new, and at least one, got '' for 5"),
        ("insert", 1, "A", "bases must be new, and at least one, got 'A' for 1"),
    ],
)
def test_wrong_changes(change, place, value, message):
    haplotype = Haplotype(encoded(REFERENCE))
    haplotype.insert(1, "G")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        getattr(haplotype, change)(place, value)
    assert haplotype.sequence() == "TGATAA"


def test_wrong_lengths():
    with pytest.raises(ValueError, match=r"^haplotypes must have one length, got 2 and 3$"):
        diplotype(Haplotype(encoded("AC")), Haplotype(encoded("ACG")))


@pytest.mark.parametrize(
    ("characters", "message"),
    [
        ("ACE", "character 3 must be of the alphabet iupac, got U+0045"),
        ("嗄", "character 1 must be of the alphabet iupac, got U+55C4"),
        ("A🧬C", "character 2 must be of the alphabet iupac, got U+1F9EC"),
        ("AC\n", "character 3 must be of the alphabet iupac, got U+000A"),
        ("A\x00", "character 2 must be of the alphabet iupac, got U+0000"),
    ],
)
def test_wrong_characters(characters, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pairs_of(characters)


def test_half_a_character():
    with pytest.raises(ValueError, match=r"^character 2 must be of the alphabet iupac, got U\+D800$"):
        pairs_of("A\ud800")


@pytest.mark.parametrize("use", [lambda: text(np.array([DEL]), "dna"), lambda: pairs_of("A", "dna")])
def test_wrong_alphabet(use):
    with pytest.raises(ValueError, match=r"^alphabet must be one of iupac, thesis; got 'dna'$"):
        use()
