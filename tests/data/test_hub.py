"""Data sets of the `datasets` library, from local folders; nothing is fetched."""

import json
import sys

import pytest

from greenformers._extras import MissingExtraError
from greenformers.data import load

pytest.importorskip("datasets", reason="the hub extra is not installed")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    import datasets
    import huggingface_hub

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Both libraries read the environment only once, when they are imported.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", tmp_path / "modules")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture
def folder(tmp_path):
    """Writes a folder of jsonl files, a split each, and gives its name."""
    place = tmp_path / "data"
    place.mkdir()

    def write(**splits):
        for name, rows in splits.items():
            (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(place)

    return write


def message(kind, name, dataset):
    with pytest.raises(kind) as caught:
        load(name, dataset=dataset)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_wikitext_lines_get_their_ends(folder):
    rows = [{"text": text} for text in ("", " = Title = \n", "", " words \n")]
    data = load("wikitext2", dataset=folder(train=rows, validation=rows[1:2], test=rows[3:]))
    assert (data.train, data.valid, data.test) == ("\n = Title = \n\n words \n", " = Title = \n", " words \n")


def test_tinyshakespeare_is_split_unless_it_is(folder):
    whole = load("tinyshakespeare", dataset=folder(train=[{"text": "0123456789abcdefghi"}]))
    assert (whole.train, whole.valid, whole.test) == ("0123456789abcdefgh", "i", "\n")
    split = load("tinyshakespeare", dataset=folder(test=[{"text": "z"}]))
    assert (split.train, split.valid, split.test) == ("0123456789abcdefghi\n", "", "z\n")


@pytest.mark.parametrize("nested", [True, False])
def test_pairs(folder, nested):
    pairs = [("A dog.", "Ein Hund."), ("Two.", "Zwei."), ("Three.", "Drei.")]
    rows = [{"de": de, "en": en} for en, de in pairs]
    rows = [{"id": i, "translation": row} for i, row in enumerate(rows)] if nested else rows
    data = load("multi30k", dataset=folder(train=rows, val=rows[:1]))
    assert (data.source, data.target) == ("en", "de")
    assert data.train == pairs
    assert data.valid == pairs[:1]
    assert data.test == []


def test_sst2_with_hidden_labels(folder):
    train = [{"idx": 4, "sentence": "good ", "label": 1}, {"idx": 5, "sentence": "bad", "label": 0}]
    hidden = [{"idx": 6, "sentence": "who knows", "label": -1}]
    data = load("sst2", dataset=folder(train=train, dev=train[1:], test=hidden))
    assert (data.train.texts, data.train.labels) == ([("good ",), ("bad",)], [1, 0])
    assert (data.valid.texts, data.valid.labels) == ([("bad",)], [0])
    with pytest.raises(ValueError, match=r"^sst2 has no test split in the folder or dataset given$"):
        data.split("test")


def test_limit(folder):
    rows = [{"text": f"text {i}", "label": i % 2} for i in range(20)]
    drawn = load("sst2", dataset=folder(train=rows), limit=6, seed=7)
    assert sorted(drawn.train.labels) == [0, 0, 0, 1, 1, 1]


def test_imdb_holds_out_every_tenth(folder):
    rows = [{"text": f"review {i}", "label": int(i >= 12)} for i in range(33)]
    data = load("imdb", dataset=folder(train=rows, test=rows[:1], unsupervised=[{"text": "u", "label": -1}]))
    assert data.valid.texts == [("review 9",), ("review 21",), ("review 31",)]
    assert data.valid.labels == [0, 1, 1]
    assert len(data.train) == 30
    corpus = load("imdb", dataset=folder(validation=rows[5:7]))
    assert (len(corpus.train), corpus.valid.texts) == (33, [("review 5",), ("review 6",)])


def test_named_classes_are_ours(tmp_path):
    """A data set may number the same classes the other way round: names decide."""
    from datasets import ClassLabel, Dataset, Features, Value

    texts = {"question": ["Who?", "When?", "Why?"], "sentence": ["He.", "Now.", "So."]}
    own = Features(
        question=Value("string"), sentence=Value("string"), label=ClassLabel(names=["not_entailment", "entailment"])
    )
    place = tmp_path / "parquet"
    Dataset.from_dict(texts | {"label": [0, 1, 1]}, own).to_parquet(place / "train-00000-of-00001.parquet")
    data = load("qnli", dataset=str(place))
    assert data.train.texts == [("Who?", "He."), ("When?", "Now."), ("Why?", "So.")]
    assert data.train.labels == [1, 0, 0]


def test_labels_may_be_names(folder):
    rows = [{"sentence1": "a", "sentence2": "b", "label": name} for name in ("not_entailment", "entailment")]
    data = load("qnli", dataset=folder(train=rows))
    assert (data.train.texts, data.train.labels) == ([("a", "b"), ("a", "b")], [1, 0])


@pytest.mark.parametrize("column", ["label", "score"])
def test_scores(folder, column):
    rows = [{"sentence1": f"a{i}", "sentence2": f"b{i}", column: score} for i, score in enumerate((0.5, 5.0, 3.75))]
    hidden = [{"sentence1": "c", "sentence2": "d", column: -1.0}]
    data = load("stsb", dataset=folder(train=rows, test=hidden))
    assert data.classes is None
    assert data.train.texts == [("a0", "b0"), ("a1", "b1"), ("a2", "b2")]
    assert data.train.labels == [0.5, 5.0, 3.75]
    assert len(data.test) == 0


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        ("sst2", [{"review": "a", "label": 1}], "train: columns must include text or sentence, found review, label"),
        ("sst2", [{"text": "a", "stars": 1}], "train: columns must include label or score, found text, stars"),
        (
            "qnli",
            [{"sentence": "a", "label": 1}],
            "train: columns must include question+sentence or sentence1+sentence2, found sentence, label",
        ),
        ("multi30k", [{"en": "a", "fr": "b"}], "train: columns must include en+de, found en, fr"),
        ("multi30k", [{"translation": {"en": "a", "fr": "b"}}], "train, row 0: expected text, found NoneType"),
        (
            "sst2",
            [{"text": "a", "label": 1}, {"text": None, "label": 0}],
            "train, row 1: expected text, found NoneType",
        ),
        (
            "sst2",
            [{"text": "a", "label": 1}, {"text": "secret", "label": -1}],
            "train, row 1: the label must be one of 0, 1, negative, positive",
        ),
        (
            "stsb",
            [{"sentence1": "secret", "sentence2": "b", "score": 5.5}],
            "train, row 0: the score must be a number in 0..5",
        ),
        ("wikitext2", [{"text": 7}], "train, row 0: expected text, found int"),
    ],
)
def test_columns_that_do_not_fit(folder, name, rows, expected):
    dataset = folder(train=rows)
    assert message(ValueError, name, dataset) == f"{dataset}, {expected}"


@pytest.mark.parametrize("dataset", ["no/such-dataset", "no/such-dataset:with-configuration", "no-such-dataset"])
def test_no_such_dataset(dataset):
    error = message(OSError, "sst2", dataset)
    assert error.startswith(f"dataset '{dataset}' cannot be loaded: ")


def test_what_cannot_be_loaded(folder, tmp_path):
    for empty in ("", " ", ":plain"):
        expected = f"dataset must be a name on the Hugging Face hub or a folder, got {empty!r}"
        assert message(ValueError, "sst2", empty) == expected
    place = folder(train=[{"text": "a", "label": 1}])
    error = message(ValueError, "sst2", f"{place}:other")
    assert error.startswith(f"dataset '{place}:other' cannot be loaded: ")
    (tmp_path / "data/train.jsonl").write_text('{"text": "a", ')
    assert message(ValueError, "sst2", place).startswith(f"dataset '{place}' cannot be loaded: ")
    (tmp_path / "data/train.jsonl").unlink()
    assert message(OSError, "sst2", place).startswith(f"dataset '{place}' cannot be loaded: ")


def test_code_of_a_dataset_is_not_run(tmp_path):
    place = tmp_path / "script"
    place.mkdir()
    (place / "script.py").write_text("raise SystemExit('run')")
    assert message(ValueError, "sst2", str(place)).startswith(f"dataset '{place}' cannot be loaded: ")


def test_library_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    expected = "a data set of the hub needs datasets: install greenformers with its extra 'hub', such as "
    assert message(MissingExtraError, "sst2", "stanfordnlp/sst2").startswith(expected)


def test_tagged_sentences(folder):
    rows = [{"tokens": ["ann", "saw"], "tags": ["B-person", "O"]}, {"tokens": ["York"], "tags": ["I-location"]}]
    data = load("wnut17", dataset=folder(train=rows))
    assert data.train.words == [["ann", "saw"], ["York"]]
    assert [[data.tags[tag] for tag in row] for row in data.train.tags] == [["B-person", "O"], ["I-location"]]
    assert len(data.valid) == len(data.test) == 0


def test_numbers_of_tags_count_the_data_set_s_own_names(tmp_path):
    import datasets

    names = ["B-person", "O"]  # in another order than ours
    tags = datasets.Sequence(datasets.ClassLabel(names=names))
    features = datasets.Features(tokens=datasets.Sequence(datasets.Value("string")), ner_tags=tags)
    rows = datasets.Dataset.from_dict({"tokens": [["saw", "ann"]], "ner_tags": [[1, 0]]}, features=features)
    rows.to_parquet(tmp_path / "train.parquet")
    data = load("wnut17", dataset=str(tmp_path))
    assert [data.tags[tag] for tag in data.train.tags[0]] == ["O", "B-person"]


@pytest.mark.parametrize("tags", [["O"], ["O", "B-place"], ["O", 99]])
def test_damaged_tags(folder, tags):
    name = folder(train=[{"tokens": ["ann", "saw"], "tags": [str(tag) for tag in tags]}])
    assert message(ValueError, "wnut17", name).startswith(
        f"{name}, train, row 0: expected words and a tag for each, one of O, B-corporation, "
    )
