"""Texts of files and folders in every format, and draws of corpora that are larger than what is held."""

import gzip
import json
import lzma
import random
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from greenformers.data import _read_texts
from greenformers.data._examples import read_examples
from greenformers.data._read_texts import read_texts
from greenformers.data._text_files import Stream, drawn, hub_name

PAIRS = [("One fish.", "A fish.", 4.0), ("Two", "Three – drei", 0.5)]


def jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path: Path, rows: list[dict[str, object]]) -> Path:
    pq = pytest.importorskip("pyarrow.parquet", reason="the hub extra is not installed")
    import pyarrow

    pq.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def tsv(path: Path, rows: list[dict[str, object]]) -> Path:
    lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("write", [jsonl, parquet, tsv])
def test_the_same_pairs_in_every_format(tmp_path: Path, write) -> None:
    rows = [{"id": 7, "score": score, "sentence1": first, "sentence2": second} for first, second, score in PAIRS]
    texts, judged = read_texts(write(tmp_path / f"pairs.{write.__name__}", rows))
    assert judged is None
    assert texts.segments == [pair[:2] for pair in PAIRS]
    assert texts.labels == [4.0, 0.5]
    rows = [{"sentence": "good", "label": 1}, {"sentence": "", "label": 0}]
    texts, _ = read_texts(write(tmp_path / f"labelled.{write.__name__}", rows))
    assert (texts.segments, texts.labels) == ([("good",), ("",)], [1, 0])
    rows = [{"target": "zwei", "source": "two"}]
    texts, _ = read_texts(write(tmp_path / f"translated.{write.__name__}", rows))
    assert texts.translated
    assert (texts.segments, texts.labels) == ([("two", "zwei")], None)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_lines_as_files_hold_them(tmp_path: Path, pack) -> None:
    ending = {gzip.compress: ".gz", lzma.compress: ".xz"}.get(pack, "")
    path = tmp_path / f"texts.txt{ending}"
    path.write_bytes(pack(b"\xef\xbb\xbf first \r\n\r\n \t\nsecond\x0blast"))
    assert read_texts(path)[0].segments == [("first",), ("second\x0blast",)]
    path = tmp_path / f"texts.jsonl{ending}"
    path.write_bytes(pack(b'{"text": "a\\nb"}\n\n{"text": " ", "url": null}\n{"text": "c"}'))
    assert read_texts(path)[0].segments == [("a\nb",), ("c",)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"\n \n", "a.txt holds no text"),
        ("a.txt", b"\n\xff", "a.txt, line 2: expected UTF-8, found another byte at place 0"),
        ("a.txt.gz", b"secret", "a.txt.gz: expected a whole gzip file, found a damaged one"),
        (
            "a.tsv",
            b"",
            "a.tsv has no columns of texts: they must be source, target; tokens, ner_tags",
        ),
        (
            "a.tsv",
            b"sentence\nsecret",
            "a.tsv has no columns of texts: they must be source, target; tokens, ner_tags",
        ),
        (
            "a.tsv",
            b"text\tlabels\nsecret\t1",
            "a.tsv has a column labels: classes must be in a column label, or in none",
        ),
        ("a.tsv", b"text\tlabel\nsecret", "a.tsv, line 2: expected 2 fields, found 1"),
        ("a.tsv", b"text\tlabel\nsecret\t-1", "a.tsv, line 2: the label must be a whole number from 0 on"),
        ("a.tsv", b"text\tlabel\nsecret\tgood", "a.tsv, line 2: the label must be a whole number from 0 on"),
        ("a.tsv", b"text\tlabel", "a.tsv holds no text"),
        ("a.tsv", b"text\tlabel\tsecret\tsecret\na\t1\t", "a.tsv, line 1: columns 3 and 4 have the same name"),
        ("a.jsonl", b'{"text": "secret"', "a.jsonl, line 1: expected JSON (Expecting "),
        ("a.jsonl", b'{"text": "a"}\n{"text": ' + b"[" * 100_000, "a.jsonl, line 2: expected JSON of fewer brackets"),
        ("a.jsonl", b'{"text": "a"}\n["secret"]', 'a.jsonl, line 2: expected an object of JSON, as {"text": ...}'),
        ("a.jsonl", b'{"text": "a"}\n\n{"secret": 1}', "a.jsonl, line 3: there is no text"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 5}', "a.jsonl, line 2: the text must be a string"),
        ("a.parquet", b"secret", "a.parquet: expected a whole parquet file, found a damaged one or none"),
        ("a.csv", b"text\nsecret", "a.csv: texts are read from .txt, .tsv, .jsonl, .parquet, .conll, got .csv"),
        ("a.json", b"[]", "a.json: texts are read from .txt, .tsv, .jsonl, .parquet, .conll, got .json"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="the hub extra is not installed")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"^a") as caught:
        read_texts(tmp_path / name)
    assert str(caught.value).startswith(said)
    assert "secret" not in str(caught.value)


def test_classes_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("sentence\tlabel\na\tgood\nb\t1\nc\tbad\n")
    texts, _ = read_texts(tmp_path / "a.tsv", classes={"good": 1, "bad": 0})
    assert list(texts.labels) == [1, 1, 0]
    (tmp_path / "a.tsv").write_text("sentence\tlabel\nsecret\tfine\n")
    with pytest.raises(ValueError, match=r"a\.tsv, line 2: the label must be one of good, bad, or a whole"):
        read_texts(tmp_path / "a.tsv", classes={"good": 1, "bad": 0})


@pytest.mark.parametrize("lists", [False, True])
def test_classes_that_a_parquet_file_numbers_are_told_by_its_names(lists: bool, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")
    pq = pytest.importorskip("pyarrow.parquet")
    kind, text = datasets.ClassLabel(names=["bad", "good"]), datasets.Value("string")
    rows = {"tokens": [["a", "b"]], "ner_tags": [[0, 1]]} if lists else {"text": ["a", "b"], "label": [0, 1]}
    kinds = [datasets.List(text), datasets.List(kind)] if lists else [text, kind]
    table = datasets.Dataset.from_dict(rows, datasets.Features(dict(zip(rows, kinds, strict=True)))).data.table
    pq.write_table(table, tmp_path / "a.parquet")
    texts, _ = read_texts(tmp_path / "a.parquet", classes={"good": 0, "bad": 1})
    assert texts.labels == ([[1, 0]] if lists else [1, 0])
    assert read_texts(tmp_path / "a.parquet", classes={"other": 0})[0].labels == ([[0, 1]] if lists else [0, 1])


def test_endings_may_be_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "A.TSV.GZ").write_bytes(gzip.compress(b"sentence\tlabel\na\t1\n"))
    (tmp_path / "B.TXT.XZ").write_bytes(lzma.compress(b"a\n"))
    assert read_texts(tmp_path / "A.TSV.GZ")[0].labels == [1]
    assert read_texts(tmp_path / "B.TXT.XZ")[0].segments == [("a",)]


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder without texts"):
        read_texts(tmp_path)
    (tmp_path / "README.txt").write_text("about")
    (tmp_path / "deep").mkdir()
    jsonl(tmp_path / "deep" / "b.jsonl", [{"text": "two", "url": "u"}])
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "trainer.txt").write_text("three\n")
    texts, judged = read_examples(tmp_path, "text")
    assert judged is None
    assert texts.segments == [("one",), ("two",), ("three",)]
    # One file that is named train, and the others that have no such name are read no longer.
    (tmp_path / "deep" / "train-00000-of-00001.txt").write_text("learn\n")
    texts, judged = read_texts(tmp_path)
    assert (texts.segments, judged) == ([("learn",)], None)
    (tmp_path / "validation").mkdir()
    tsv(tmp_path / "validation" / "x.tsv", [{"sentence": "valid", "label": 1}])
    texts, judged = read_texts(tmp_path)
    assert (texts.segments, judged.segments, judged.labels) == ([("learn",)], [("valid",)], [1])
    jsonl(tmp_path / "test.jsonl", [{"text": "test"}])
    assert read_texts(tmp_path)[1].segments == [("test",)]
    tsv(tmp_path / "deep" / "train-b.tsv", [{"sentence": "labelled", "label": 1}])
    with pytest.raises(ValueError, match=r"train-b.tsv has the columns sentence, label, and train-00000.* has text:"):
        read_texts(tmp_path)


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 40])
def test_a_draw_is_uniform(count: int) -> None:
    seen: Counter[int] = Counter()
    for seed in range(3000):
        rows, total = drawn(iter(range(count)), 5, seed)
        assert total == count
        assert rows == sorted(set(rows))
        assert len(rows) == min(count, 5)
        seen.update(rows)
    share = min(1, 5 / max(count, 1))
    # Five standard deviations of a binomial share of 3,000 draws.
    room = 5 * (share * (1 - share) / 3000) ** 0.5
    assert all(abs(seen[row] / 3000 - share) <= room for row in range(count))


def test_a_corpus_larger_than_what_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_read_texts, "MOST", 100)
    lines = [f"{number} " + "x" * 200 for number in range(20_000)]
    (tmp_path / "large.txt").write_text("\n".join(lines))
    tracemalloc.start()
    texts, _ = read_texts(tmp_path / "large.txt")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400_000, "4 MB of text in the memory of a tenth"
    assert texts.name == "large.txt (100 of 20,000 texts)"
    assert read_texts(tmp_path / "large.txt") == (texts, None)
    numbers = [int(text.split()[0]) for (text,) in texts.segments]
    assert numbers == sorted(numbers)
    assert numbers[50] > 5000, "drawn from all of the file"


def test_a_corpus_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_read_texts, "LARGEST", 200_000)
    path = tmp_path / "long.jsonl"
    jsonl(path, [{"text": f"{number} " + "x" * 5000} for number in range(800)])
    tracemalloc.start()
    with pytest.warns(UserWarning, match=r"^long\.jsonl: 39 of 800 texts are read, as many as 0\.19\d* MiB hold$"):
        texts, _ = read_texts(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 800_000, "4 MB of text in the memory of a fifth"
    assert texts.name == "long.jsonl (39 of 800 texts)"
    with pytest.warns(UserWarning, match="39 of 800"):
        assert read_texts(path) == (texts, None), "the same in every process"
    numbers = [int(text.split()[0]) for (text,) in texts.segments]
    assert numbers == sorted(numbers)
    assert numbers[20] > 150, "drawn from all of the file"


@pytest.mark.parametrize(("enough", "held"), [(5, 8), (30, 30), (900, 800), (None, 800)])
def test_no_more_is_held_of_a_large_file_than_is_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enough: int | None, held: int
) -> None:
    """Of more than `ENOUGH` bytes no more than so many texts, nor fewer than have these bytes."""
    monkeypatch.setattr(_read_texts, "ENOUGH", 44_000)
    path = tmp_path / "long.txt"
    path.write_text("".join(f"{number:04} " + "x" * 4995 + "\n" for number in range(800)))
    texts, _ = read_texts(path, enough)
    assert len(texts) == held
    assert texts.name == ("long.txt" if held == 800 else f"long.txt ({held} of 800 texts)")


def test_a_single_text_is_read_however_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_read_texts, "LARGEST", 10)
    (tmp_path / "long.txt").write_text("x" * 1000)
    assert read_texts(tmp_path / "long.txt")[0].segments == [("x" * 1000,)]


@pytest.mark.parametrize("count", [3, 40])
def test_a_draw_bounded_in_bytes_is_uniform(count: int) -> None:
    """Rows of 1 and of 2 bytes, alternating: each is as likely to be held."""
    seen: Counter[int] = Counter()
    for seed in range(3000):
        rows, total = drawn(
            iter(range(count)), None, seed, size=lambda row: 1 + row % 2, fits=lambda *held: held[1] <= 30
        )
        assert total == count
        assert sum(1 + row % 2 for row in rows) <= 30
        seen.update(rows)
    if count == 3:
        assert dict(seen) == dict.fromkeys(range(3), 3000)
        return
    halves = [sum(seen[row] for row in range(start, count, 2)) for start in (0, 1)]
    # A row of two bytes is the last one that does not fit a little more often: one of twenty rows.
    assert abs(halves[0] / halves[1] - 1) < 0.08
    early, late = (sum(seen[row] for row in part) for part in (range(20), range(20, 40)))
    assert abs(early / late - 1) < 0.05


@pytest.mark.parametrize("hidden", [{"sentence": "who knows"}, {"sentence": "who knows", "label": -1}])
def test_a_test_file_that_withholds_its_labels_judges_nothing(tmp_path: Path, hidden: dict[str, object]) -> None:
    for name, rows in (
        ("train", [{"sentence": "learn", "label": 1}]), ("dev", [{"sentence": "dev", "label": 0}]), ("test", [hidden]),
    ):  # fmt: skip
        tsv(tmp_path / f"{name}.tsv", rows)
    texts, judged = read_texts(tmp_path)
    assert (texts.segments, judged.segments) == ([("learn",)], [("dev",)])
    (tmp_path / "dev.tsv").unlink()
    assert read_texts(tmp_path)[1] is None


def test_the_address_of_a_data_set() -> None:
    assert hub_name(Path("hf://datasets/nyu-mll/glue:sst2")) == "nyu-mll/glue:sst2"
    assert hub_name(Path("datasets/nyu-mll/glue")) is None


class Split:
    """What is asked of a `datasets.IterableDataset`."""

    column_names = features = None

    def __init__(self, rows: list[dict[str, object]]) -> None:
        self.rows, self.asked = rows, 0

    def __iter__(self):
        for row in self.rows:
            self.asked += 1
            yield row

    def shuffle(self, seed: int, buffer_size: int) -> "Split":
        assert buffer_size == Stream.BUFFER
        return Split(random.Random(seed).sample(self.rows, len(self.rows)))


def test_of_a_data_set_of_the_hub_no_more_is_fetched_than_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_read_texts, "LARGEST", 1000)
    rows = Split([{"text": f"{number:02} " + "x" * 97} for number in range(90)])
    monkeypatch.setattr(_read_texts, "streamed", lambda _: {"train": rows})
    monkeypatch.setattr(Split, "shuffle", lambda self, **_: self)
    with pytest.warns(UserWarning, match=r"^some/thing train: the first 10 texts are read, as many as "):
        texts, judged = read_texts(Path("hf://datasets/some/thing"))
    assert (texts.name, len(texts), judged) == ("some/thing train (the first 10 texts)", 10, None)
    # One for the columns, one for the labels, and the first that no longer fits.
    assert rows.asked == 13


def test_data_sets_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_read_texts, "MOST", 10)
    train = Split([{"idx": n, "sentence": str(n), "label": n % 2} for n in range(100)])
    dev = Split([{"idx": 0, "sentence": "dev", "label": 1}])
    hidden = Split([{"idx": 0, "sentence": "who knows", "label": -1}])
    asked = []

    def streamed(name: str) -> dict[str, Split]:
        asked.append(name)
        return {"train": train, "valid": dev, "test": hidden}

    monkeypatch.setattr(_read_texts, "streamed", streamed)
    texts, judged = read_texts(Path("hf://datasets/nyu-mll/glue:sst2"))
    assert asked == ["nyu-mll/glue:sst2"]
    assert (texts.name, len(texts)) == ("nyu-mll/glue:sst2 train (the first 10 texts)", 10)
    assert all(label == int(text) % 2 for (text,), label in zip(texts.segments, texts.labels, strict=True))
    assert judged.segments == [("dev",)], "the labels of test are withheld"
    train.rows = train.rows[:10]
    assert read_texts(Path("hf://datasets/nyu-mll/glue:sst2"))[0].name == "nyu-mll/glue:sst2 train"


def test_a_folder_as_the_library_streams_it(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the hub extra is not installed")
    from greenformers.data._hub import streamed

    jsonl(tmp_path / "train.jsonl", [{"text": str(n)} for n in range(50)])
    rows = Stream("some train", streamed(str(tmp_path))["train"], 40)
    assert rows.columns == ("text",)
    first, again = (list(rows.raw()) for _ in range(2))
    assert first == again
    assert [number for number, _ in first] == [*range(1, 41)]
    assert {row["text"] for _, row in first} < {str(n) for n in range(50)}
    assert [row["text"] for _, row in first] != [str(n) for n in range(40)]
