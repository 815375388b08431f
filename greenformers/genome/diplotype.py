"""Two haplotypes as one sequence of pairs, and pairs as characters. Cahyawijaya 2021, 5.2.1, figure 5.2, table 5.1.

A haplotype is aligned to the reference: it has a symbol at every position (A, C, G, T, N, or DEL where a base is
deleted), and inserted symbols (AI, CI, GI, TI, NI) in columns of their own between two positions, where a haplotype
without them has DEL. So the pairs determine substitutions, insertions and deletions, but not which of the two
haplotypes has which symbol, as pairs have no order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SYMBOLS = ("A", "C", "G", "T", "N", "AI", "CI", "GI", "TI", "NI", "DEL")
"""Symbols of a haplotype; a symbol's index is its code."""

BASES = "ACGTN"
N, INSERTED, DEL = 4, 5, 10  # codes: unknown, the first of the inserted ones, deleted

PAIRS = tuple((first, second) for first in range(len(SYMBOLS)) for second in range(first, len(SYMBOLS)))
"""The 66 unordered pairs of symbols, the smaller code first; a pair's index is its code."""

PAIR = np.empty((len(SYMBOLS), len(SYMBOLS)), dtype=np.uint8)
"""Code of the pair of two symbols, in either order."""
for _code, (_first, _second) in enumerate(PAIRS):
    PAIR[_first, _second] = PAIR[_second, _first] = _code

_SYMBOLS_OF = np.array(PAIRS, dtype=np.uint8)
_HAS_INSERTED = np.logical_or.reduce((_SYMBOLS_OF >= INSERTED) & (_SYMBOLS_OF < DEL), axis=1)


def _named(pairs: dict[str, str]) -> str:
    """Characters in the order of `PAIRS`, from pairs written as A-C."""
    codes = {name: code for code, name in enumerate(SYMBOLS)}
    placed = {
        int(PAIR[codes[first], codes[second]]): pairs[f"{first}-{second}"]
        for first, second in (key.split("-") for key in pairs)
    }
    return "".join(placed[code] for code in range(len(PAIRS)))


def _own() -> str:
    same = dict(zip((f"{name}-{name}" for name in SYMBOLS), "ACGTNacgtn-", strict=True))
    ambiguous = {"A-C": "M", "A-G": "R", "A-T": "W", "C-G": "S", "C-T": "Y", "G-T": "K"}
    others = [f"{SYMBOLS[first]}-{SYMBOLS[second]}" for first, second in PAIRS]
    others = [name for name in others if name not in same | ambiguous]
    return _named(same | ambiguous | {name: chr(0x4E00 + place) for place, name in enumerate(others)})


ALPHABETS: dict[str, str] = {
    # Capitals for equal bases, small letters for equal inserted ones, - for both deleted; IUPAC's codes for two bases;
    # for the other pairs, in the order of their codes, the CJK characters from U+4E00 on.
    "iupac": _own(),
    # Cahyawijaya 2021, table 5.1.
    "thesis": _named(
        dict(zip((f"{name}-{name}" for name in SYMBOLS), "ACGTNBDHUOX", strict=True))
        | dict(
            zip(("A-C", "A-G", "A-N", "A-T", "A-AI", "A-CI", "A-GI", "A-NI", "A-TI"), "嗄阿呵锕吖俺安案按", strict=True)
        )
        | dict(
            zip(("AI-C", "AI-CI", "AI-G", "AI-GI", "AI-N", "AI-NI", "AI-T", "AI-TI"), "爸比八霸巴逼把笔", strict=True)
        )
        | dict(zip(("C-G", "C-N", "C-T", "C-CI", "C-GI", "C-NI", "C-TI"), "嚓拆礤车床穿出", strict=True))
        | dict(zip(("CI-G", "CI-GI", "CI-N", "CI-NI", "CI-T", "CI-TI"), "懂答达第瘩沓", strict=True))
        | dict(zip(("DEL-A", "DEL-AI", "DEL-C", "DEL-CI", "DEL-G", "DEL-GI"), "腌拔吃搭想香", strict=True))
        | dict(zip(("DEL-N", "DEL-NI", "DEL-T", "DEL-TI"), "学虚徐需", strict=True))
        | dict(
            zip(
                ("G-GI", "G-N", "G-NI", "G-T", "G-TI", "GI-N", "GI-NI", "GI-T", "GI-TI"),
                "高给股个该蝦合虾盒",
                strict=True,
            )
        )
        | dict(zip(("N-NI", "N-T", "N-TI", "NI-T", "NI-TI", "T-TI"), "讷哪娜喔侬拓", strict=True))
    ),
}
"""A character for every pair, in the order of `PAIRS`; all are distinct and stable under NFKC."""

_TO_CODE = {}
for _name, _characters in ALPHABETS.items():
    _codes = np.full(0x10000, 255, dtype=np.uint8)
    _codes[[ord(character) for character in _characters]] = np.arange(len(PAIRS), dtype=np.uint8)
    _TO_CODE[_name] = _codes

_BASE_TO_CODE = np.full(256, N, dtype=np.uint8)
for _code, _base in enumerate(BASES):
    _BASE_TO_CODE[[ord(_base), ord(_base.lower())]] = _code


def encoded(bases: str) -> NDArray[np.uint8]:
    """Codes of bases, (n,); small letters count as capitals, other letters as N."""
    return _BASE_TO_CODE[np.frombuffer(bases.encode("latin-1", "replace"), dtype=np.uint8)]


def decoded(codes: NDArray[np.uint8]) -> str:
    """The bases that codes 0..4 stand for."""
    return np.frombuffer(BASES.encode(), dtype=np.uint8)[codes].tobytes().decode()


@dataclass(eq=False)
class Haplotype:
    """One chromosome's sequence, aligned to a reference of n positions.

    Attributes:
        bases: Codes at the positions, (n,): A, C, G, T, N or DEL.
        inserted: Codes 0..4 of inserted bases, by the number of positions before them, 0..n.
    """

    bases: NDArray[np.uint8]
    inserted: dict[int, NDArray[np.uint8]] = field(default_factory=dict)

    def substitute(self, place: int, bases: str) -> None:
        """Replace bases from position `place` (0..n - 1) on."""
        self._check(place, len(bases))
        self.bases[place : place + len(bases)] = encoded(bases)

    def insert(self, place: int, bases: str) -> None:
        """Insert bases after the first `place` (0..n) positions."""
        self._check(place, 0)
        if not bases or place in self.inserted:
            raise ValueError(f"bases must be new, and at least one, got {bases!r} for {place}")
        self.inserted[place] = encoded(bases)

    def delete(self, place: int, count: int) -> None:
        """Delete the bases at `count` positions, from `place` on."""
        self._check(place, count)
        self.bases[place : place + count] = DEL

    def part(self, start: int, end: int) -> Haplotype:
        """The positions start..end - 1, with bases inserted after them; where start is 0, with those before too."""
        self._check(start, end - start)
        inserted = {
            place - start: bases
            for place, bases in self.inserted.items()
            if start < place <= end or place == start == 0
        }  # fmt: skip
        return Haplotype(self.bases[start:end], inserted)

    def sequence(self) -> str:
        """The bases in their order on the chromosome, without deleted ones and with inserted ones."""
        parts, done = [], 0
        for place in sorted(self.inserted):
            parts += [self.bases[done:place], self.inserted[place]]
            done = place
        whole = np.concatenate([*parts, self.bases[done:]])
        return decoded(whole[whole != DEL])

    def _check(self, place: int, count: int) -> None:
        if not 0 <= place <= place + count <= len(self.bases):
            raise ValueError(f"positions must be in 0..{len(self.bases)}, got {place}..{place + count}")


def diplotype(first: Haplotype, second: Haplotype) -> NDArray[np.uint8]:
    """Codes of pairs, (m,), m >= n: those of the positions, and of the columns inserted between them.

    Raises:
        ValueError: The haplotypes are of different lengths.
    """
    if len(first.bases) != len(second.bases):
        raise ValueError(f"haplotypes must have one length, got {len(first.bases)} and {len(second.bases)}")
    columns = {}
    for place in first.inserted.keys() | second.inserted.keys():
        nothing = np.empty(0, dtype=np.uint8)
        sides = [haplotype.inserted.get(place, nothing) + np.uint8(INSERTED) for haplotype in (first, second)]
        columns[place] = PAIR[tuple(_filled(side, max(map(len, sides))) for side in sides)]
    return with_columns(PAIR[first.bases, second.bases], columns)


def _filled(codes: NDArray[np.uint8], length: int) -> NDArray[np.uint8]:
    return np.concatenate([codes, np.full(length - len(codes), DEL, dtype=np.uint8)])


def with_columns(pairs: NDArray[np.uint8], columns: dict[int, NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Pairs of the positions with inserted columns, given by the number of positions before each."""
    if not columns:
        return pairs
    places = sorted(columns)
    counts = [len(columns[place]) for place in places]
    return np.insert(pairs, np.repeat(places, counts), np.concatenate([columns[place] for place in places]))


def symbols(pairs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Both symbols of every pair, (m, 2), the smaller code first."""
    return _SYMBOLS_OF[pairs]


def inserted(pairs: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether each column is inserted between positions of the reference, (m,)."""
    return _HAS_INSERTED[pairs]


def places(pairs: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Position of the reference, from 0, of each column, (m,); of an inserted one, the position before it."""
    return np.cumsum(~inserted(pairs)) - 1


def text(pairs: NDArray[np.uint8], alphabet: str = "iupac") -> str:
    """A character for every pair."""
    return (
        np.array([ord(character) for character in _alphabet(alphabet)], dtype="<u2")[pairs]
        .tobytes()
        .decode("utf-16-le")
    )


def pairs_of(text: str, alphabet: str = "iupac") -> NDArray[np.uint8]:
    """The pairs that characters stand for.

    Raises:
        ValueError: A character is not in the alphabet.
    """
    _alphabet(alphabet)
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    codes = np.where(characters < 0x10000, _TO_CODE[alphabet][np.minimum(characters, 0xFFFF)], 255).astype(np.uint8)
    unknown = np.flatnonzero(codes == 255)
    if len(unknown):
        place = int(unknown[0])
        # The message shows the character alone, as the rest is somebody's genome.
        raise ValueError(f"character {place + 1} must be of the alphabet {alphabet}, got U+{ord(text[place]):04X}")
    return codes


def _alphabet(name: str) -> str:
    if name not in ALPHABETS:
        raise ValueError(f"alphabet must be one of {', '.join(ALPHABETS)}; got {name!r}")
    return ALPHABETS[name]
