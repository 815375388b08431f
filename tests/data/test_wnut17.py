"""WNUT 2017: files written here, damaged ones, columns of the hub, and the files themselves."""

import lzma
from pathlib import Path

import pytest

from greenformers.data import Tagged, load
from greenformers.data.wnut17 import TAGS

SHARED = Path(__file__).parents[2].parent / "shared/data/wnut17"
TEXT = '@ann\tB-person\nsaw\tO\n"\tO\n\t\nNew\tB-location\nYork\tI-location\n\n\n\na b\tB-creative-work\n'


def test_words_and_tags_are_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "wnut17_train.conll.xz").write_bytes(lzma.compress(TEXT.encode()))
    (tmp_path / "emerging.dev.conll").write_bytes(b"x\tO\r\n\r\n")
    data = load("wnut17", tmp_path)
    assert isinstance(data, Tagged)
    assert data.train.words == [["@ann", "saw", '"'], ["New", "York"], ["a b"]]
    named = [[data.tags[tag] for tag in row] for row in data.train.tags]
    assert named == [["B-person", "O", "O"], ["B-location", "I-location"], ["B-creative-work"]]
    assert (data.valid.words, data.valid.tags) == ([["x"]], [[0]])
    assert len(data.test) == 0
    assert data.tags[0] == "O"
    few = load("wnut17", tmp_path, limit=2, seed=1)
    assert len(few.train) == len(few.train.words) == 2
    assert {tuple(row) for row in few.train.words} < {tuple(row) for row in data.train.words}


@pytest.mark.parametrize("line", ["word O", "word\tB-place", "word\t", "\tO", "word"])
def test_damaged_files(tmp_path: Path, line: str) -> None:
    (tmp_path / "wnut17_dev.conll").write_text(f"{TEXT}{line}\n")
    with pytest.raises(ValueError, match=r"^wnut17_dev\.conll, line 11: expected a word, a tab, and one of O, B-corpo"):
        load("wnut17", tmp_path)


def test_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^wnut17 needs wnut17_train\.conll, .*; none is in folder"):
        load("wnut17", tmp_path)
    with pytest.raises(ValueError, match=r"got neither$"):
        load("wnut17")


def test_the_published_files() -> None:
    if not SHARED.is_dir():
        pytest.skip("shared/data/wnut17 is not beside the repository on this machine")
    data = load("wnut17", SHARED)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [3394, 1009, 0]
    counts = {tag: sum(row.count(number) for row in data.train.tags) for number, tag in enumerate(TAGS)}
    assert counts["B-person"] == 660
    assert counts["B-product"] == 142
    assert sum(count for tag, count in counts.items() if tag.startswith("B-")) == 1975
