"""Documents with summaries: tables of papers, and articles cut into their first section and the rest."""

from pathlib import Path

import pytest

from greenformers.data import Document, Summaries, Text, load, wikitext_articles

SHARED = Path(__file__).parents[2].parent / "shared/data"
TABLE = "paper_id\ttitle\tabstract\tsummaries\n"
ROWS = [
    "a1\tOf Trees \tTrees grow. They do.\tTrees grow. ||| They  do. ||| \n",
    "a2\tOf Rain\tIt rains.\tRain.\r\n",
]


def tables(folder, **parts):
    for part, rows in parts.items():
        (folder / f"scitldr_{part}.tsv").write_text(TABLE + "".join(rows))
    return folder


def message(kind, *args, **options):
    with pytest.raises(kind) as caught:
        load("scitldr", *args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_papers(tmp_path):
    data = load("scitldr", tables(tmp_path, train=ROWS, dev=ROWS[:1]))
    assert isinstance(data, Summaries)
    trees = Document("Of Trees", "Trees grow. They do.", ("Trees grow.", "They  do."))
    assert data.train == [trees, Document("Of Rain", "It rains.", ("Rain.",))]
    assert data.valid == [trees]
    with pytest.raises(ValueError, match=r"^scitldr has no test split in the folder or dataset given$"):
        data.split("test")
    assert load("scitldr", tables(tmp_path, test=ROWS[1:])).split("test") == data.train[1:]


def test_a_source_is_title_and_text():
    assert Document("Of Rain", "It rains.", ("Rain.",)).source == "Of Rain | It rains."
    assert Document("", "It rains.", ("Rain.",)).source == "It rains."


def test_damaged_papers(tmp_path):
    tables(tmp_path, dev=ROWS)
    expected = (
        f"scitldr_train.tsv, scitldr_train.tsv.gz or scitldr_train.tsv.xz is needed, none is in folder '{tmp_path}'"
    )
    assert message(FileNotFoundError, tmp_path) == expected
    tables(tmp_path, train=[*ROWS, "a3\tsecret\tsecret\t ||| \n"])
    assert message(ValueError, tmp_path) == "scitldr_train.tsv, line 4: there must be a summary, found none"
    tables(tmp_path, train=["a3\tsecret\tsecret\n"])
    assert message(ValueError, tmp_path) == "scitldr_train.tsv, line 2: expected 4 fields, found 3"
    (tmp_path / "scitldr_train.tsv").write_text("title\tabstract\n")
    expected = "scitldr_train.tsv, line 1: the header must name title, abstract, summaries"
    assert message(ValueError, tmp_path) == expected


def dataset(folder, **splits):
    from datasets import Dataset

    for part, rows in splits.items():
        Dataset.from_list(rows).to_parquet(folder / f"{part}-00000-of-00001.parquet")
    return str(folder)


def test_papers_of_the_hub(tmp_path):
    row = {"source": ["Trees grow. ", "They do."], "target": ["Trees grow.", " "], "paper_id": "a1"}
    data = load("scitldr", dataset=dataset(tmp_path, train=[row], validation=[row]))
    assert data.train == data.valid == [Document("", "Trees grow. They do.", ("Trees grow.",))]
    assert data.test == []
    (tmp_path / "titles").mkdir()
    data = load("scitldr", dataset=dataset(tmp_path / "titles", test=[row | {"title": "Of Trees"}]))
    assert data.test == [Document("Of Trees", "Trees grow. They do.", ("Trees grow.",))]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"source": ["a"], "summary": "b"}], "train: columns must include source+target, found source, summary"),
        ([{"source": ["a"], "target": []}], "train, row 0: there must be a summary, found none"),
        ([{"source": "a", "target": ["b"]}], "train, row 0: expected a list of texts, found str"),
    ],
)
def test_columns_of_the_hub_that_do_not_fit(tmp_path, rows, expected):
    name = dataset(tmp_path, train=rows)
    assert message(ValueError, dataset=name) == f"{name}, {expected}"


ARTICLES = """ \n = Of Trees = \n \n Trees grow . \n They do . \n \n = = Roots = = \n \n Roots hold  them . \n
 = = = Deep = = = \n \n Some are deep . \n \n = Of Rain = \n \n It rains . \n \n = Of Snow = \n
 It snows . \n \n = = Where = = \n \n In the north = cold . \n"""


def test_articles_are_their_first_section_and_the_rest():
    data = wikitext_articles.generate(Text("wikitext2", ARTICLES, "", ARTICLES))
    trees = Document("Of Trees", "Roots hold them .\nSome are deep .", ("Trees grow . They do .",))
    assert data.train == data.test == [trees, Document("Of Snow", "In the north = cold .", ("It snows .",))]
    assert data.valid == []


@pytest.mark.parametrize(
    ("words", "expected"), [(1, "Roots"), (4, "Roots hold them ."), (6, "Roots hold them .\nSome are")]
)
def test_long_articles_are_cut(words, expected):
    data = wikitext_articles.generate(Text("wikitext2", ARTICLES, "", ""), words=words)
    assert data.train[0].text == expected
    assert data.train[0].summaries == ("Trees grow . They do .",)


def test_words_out_of_range():
    with pytest.raises(ValueError, match=r"^words must be at least 1, got 0$"):
        wikitext_articles.generate(Text("wikitext2", ARTICLES, "", ""), words=0)


def real(name, folder):
    if not (SHARED / folder).is_dir():
        pytest.skip(f"shared/data/{folder} is not beside the repository on this machine")
    return load(name, SHARED / folder)


def test_scitldr():
    data = real("scitldr", "scitldr")
    assert [len(split) for split in (data.train, data.valid, data.test)] == [1_992, 619, 0]  # as published
    assert {len(paper.summaries) for paper in data.train} == {1}
    assert sum(len(paper.summaries) for paper in data.valid) == 1_453
    assert data.valid[0].title == "Adaptive Loss Scaling for Mixed Precision Training"
    assert all(paper.title and paper.text for paper in data.train + data.valid)


def test_wikitext_articles():
    data = real("wikitext_articles", "wikitext2")
    assert [len(split) for split in (data.train, data.valid, data.test)] == [600, 60, 60]
    assert data.train[0].title == "Valkyria Chronicles III"
    assert data.train[0].summaries[0].startswith("Senjō no Valkyria 3 : <unk> Chronicles")
    assert data.train[0].text.startswith("As with previous <unk> Chronicles games")
    assert max(len(article.text.split()) for article in data.train) == 4_096
    assert len({article.text for article in data.train + data.valid + data.test}) == 720  # none is in two splits
