"""Data sets of text read from small written files: every layout, and every error."""

import gzip
import lzma

import pytest

from greenformers.data import _files, load

SST2 = "a fine film\t1\ndull\t0\nnot bad at all\t1\n"
QNLI = "index\tquestion\tsentence\tlabel\n0\tWho?\tHe did.\tentailment\n1\tWhen ?\tHere.\tnot_entailment\n"
STSB = "genre\tscore\tsentence1\tsentence2\nnews\t2.5\tone\ttwo\nnews\t0\tthree\tfour\nnews\t5.0\tfive\tsix\n"
IMDB = "label\tid\trating\tval_in_source\ttext\n"
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def write(folder, **files):
    """Files by name, with __ for a dot."""
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


def message(kind, name, *args, **options):
    with pytest.raises(kind) as caught:
        load(name, *args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("suffix", PACK)
def test_plain_and_packed_read_alike(tmp_path, suffix):
    for part, word in (("train", "erste"), ("valid", "zwölfte"), ("test", "letzte")):
        (tmp_path / f"wiki.{part}.tokens{suffix}").write_bytes(PACK[suffix](f" \n = {word} = \n".encode()))
    data = load("wikitext2", tmp_path)
    assert (data.name, data.train, data.valid, data.test) == (
        "wikitext2",
        " \n = erste = \n",
        " \n = zwölfte = \n",
        " \n = letzte = \n",
    )


def test_plain_comes_first(tmp_path):
    write(tmp_path, input__txt="plain", input__txt__gz=gzip.compress(b"gzip"), input__txt__xz=lzma.compress(b"xz"))
    assert load("tinyshakespeare", str(tmp_path)).test == "n"
    (tmp_path / "input.txt").unlink()
    assert load("tinyshakespeare", tmp_path).test == "p"


def test_running_text_keeps_its_line_ends(tmp_path):
    write(tmp_path, wiki__train__tokens="a\r\nb\u2028c\n", wiki__valid__tokens="", wiki__test__tokens="d")
    data = load("wikitext2", tmp_path)
    assert data.train == "a\r\nb\u2028c\n"
    assert data.split("test") == "d"
    with pytest.raises(ValueError, match=r"^wikitext2 has no valid split in the folder or dataset given$"):
        data.split("valid")
    with pytest.raises(ValueError, match=r"^split must be one of train, valid, test, got 'dev'$"):
        data.split("dev")


def test_tinyshakespeare_is_cut_in_order(tmp_path):
    text = "".join(chr(ord("A") + i) for i in range(47))
    data = load("tinyshakespeare", write(tmp_path, input__txt=text))
    assert (data.train, data.valid, data.test) == (text[:42], text[42:44], text[44:])


def test_multi30k(tmp_path):
    write(
        tmp_path,
        train__en="A dog.\nTwo\tcats.\n",
        train__de="Ein Hund.\r\nZwei Katzen.",
        val__en="x\n",
        val__de="y\n",
        test_2016_flickr__en="A\u2028B\n",
        test_2016_flickr__de="C\n",
        test_2017_flickr__en="not\nread",
    )
    data = load("multi30k", tmp_path)
    assert data.train == [("A dog.", "Ein Hund."), ("Two\tcats.", "Zwei Katzen.")]
    assert data.split("valid") == [("x", "y")]
    assert data.split("test") == [("A\u2028B", "C")]
    write(tmp_path, val__de="y\nz\n")
    assert message(ValueError, "multi30k", tmp_path) == "val.de must have 1 lines as val.en, found 2"
    (tmp_path / "val.de").unlink()
    expected = f"val.de, val.de.gz or val.de.xz is needed, none is in folder '{tmp_path}'"
    assert message(FileNotFoundError, "multi30k", tmp_path) == expected


def test_sst2_without_header(tmp_path):
    data = load("sst2", write(tmp_path, train__tsv=SST2, dev__tsv="good\t1", test__tsv="bad\t0\r\n"))
    assert data.train.texts == [("a fine film",), ("dull",), ("not bad at all",)]
    assert data.train.labels == [1, 0, 1]
    assert (data.valid.texts, data.valid.labels) == ([("good",)], [1])
    assert (data.test.texts, data.test.labels) == ([("bad",)], [0])


def test_sst2_of_glue(tmp_path):
    header = "sentence\tlabel\n"
    write(tmp_path, train__tsv=header + SST2, dev__tsv=header + "good \t1\n", test__tsv="index\tsentence\n0\tok\n")
    data = load("sst2", tmp_path)
    assert data.train.labels == [1, 0, 1]
    assert data.valid.texts == [("good ",)]
    assert len(data.test) == 0
    with pytest.raises(ValueError, match=r"^sst2 has no test split in the folder or dataset given$"):
        data.split("test")


def test_qnli(tmp_path):
    data = load("qnli", write(tmp_path, train__tsv=QNLI, dev__tsv=QNLI[: QNLI.index("1\tWhen")]))
    assert data.train.texts == [("Who?", "He did."), ("When ?", "Here.")]
    assert data.train.labels == [0, 1]
    assert data.valid.labels == [0]
    assert len(load("qnli", write(tmp_path, test__tsv="index\tquestion\tsentence\n0\ta\tb\n")).test) == 0


def test_stsb(tmp_path):
    data = load("stsb", write(tmp_path, train__tsv=STSB, test__tsv="index\tsentence1\tsentence2\n0\ta\tb\n"))
    assert data.classes is None
    assert data.train.texts == [("one", "two"), ("three", "four"), ("five", "six")]
    assert data.train.labels == [2.5, 0.0, 5.0]
    assert (len(data.valid), len(data.test)) == (0, 0)


def test_imdb_tables_are_unescaped(tmp_path):
    row = r"1	7	9	0	a \"quote\", C:\\new\ttab\nline\rend".replace(r"\"", '"')
    data = load("imdb", write(tmp_path, imdb_train__tsv=IMDB + row, imdb_test__tsv=IMDB + "0\t3\t2\t1\tsecond\\\\\n"))
    assert data.train.texts == [('a "quote", C:\\new\ttab\nline\rend',)]
    assert data.test.texts == [("second\\",)]
    assert data.test.labels == [0]
    write(tmp_path, imdb_test__tsv=IMDB + "0\t3\t2\t1\tgood\n1\t4\t9\t0\tbad \\x escape\n")
    expected = r"imdb_test.tsv, line 3: a backslash must be followed by \, t, n or r"
    assert message(ValueError, "imdb", tmp_path) == expected
    write(tmp_path, imdb_test__tsv=IMDB + "0\t3\t2\t1\tends so\\")
    assert message(ValueError, "imdb", tmp_path) == expected.replace("3", "2")


def test_imdb_folders(tmp_path):
    for part, sizes in (("train", (23, 11)), ("test", (2, 3))):
        for name, size in zip(("neg", "pos"), sizes, strict=True):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(size):
                (tmp_path / part / name / f"{i}_{i % 4 + 1}.txt").write_text(f"{part} {name} {i}\tas it\\n is\n")
    data = load("imdb", tmp_path)
    # Every tenth review of each class, in the order of the ids: 9 before 10.
    assert [text for (text,) in data.valid.texts] == [
        f"train {which}\tas it\\n is\n" for which in ("neg 9", "neg 19", "pos 9")
    ]
    assert data.valid.labels == [0, 0, 1]
    assert data.train.labels == [0] * 21 + [1] * 10
    assert data.train.texts[20] == ("train neg 22\tas it\\n is\n",)
    assert data.test.texts[:3] == [(f"test {which}\tas it\\n is\n",) for which in ("neg 0", "neg 1", "pos 0")]
    (tmp_path / "test/pos/readme.txt").write_text("")
    expected = "pos/readme.txt: reviews must be named <id>_<rating>.txt"
    assert message(ValueError, "imdb", tmp_path) == expected
    for path in (tmp_path / "test/pos").iterdir():
        path.unlink()
    expected = f"imdb needs reviews <id>_<rating>.txt, none is in folder '{tmp_path / 'test' / 'pos'}'"
    assert message(FileNotFoundError, "imdb", tmp_path) == expected


@pytest.mark.parametrize(
    "name", ["wikitext2", "tinyshakespeare", "multi30k", "scitldr", "sst2", "qnli", "imdb", "stsb"]
)
def test_folder_or_dataset(name, tmp_path):
    expected = f"{name} needs the folder that holds its files, or a dataset, got neither"
    assert message(ValueError, name) == expected
    expected = f"{name} takes a folder or a dataset, got both: 'here' and 'there'"
    assert message(ValueError, name, "here", dataset="there") == expected
    nowhere = tmp_path / "nowhere"
    expected = f"{name} needs the folder that holds its files, '{nowhere}' is not a folder"
    assert message(FileNotFoundError, name, nowhere) == expected
    assert str(tmp_path) in message(FileNotFoundError, name, tmp_path)


def test_no_table(tmp_path):
    expected = (
        "qnli needs train.tsv, dev.tsv or test.tsv, or one of these as .gz or .xz; "
        f"none is in folder '{write(tmp_path, train__csv=QNLI)}'"
    )
    assert message(FileNotFoundError, "qnli", tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("sst2", "secret\t1\nsecret\n", "train.tsv, line 2: expected 2 fields, found 1"),
        ("sst2", "secret\t1\n\nsecret\t0\n", "train.tsv, line 2: expected 2 fields, found 1"),
        ("sst2", "secret\tsecret\t1\n", "train.tsv, line 1: expected 2 fields, found 3"),
        ("sst2", "secret\tx\n", "train.tsv, line 1: the label must be one of 0, 1, negative, positive"),
        (
            "sst2",
            "sentence\tlabel\na\t1\nb\t2\n",
            "train.tsv, line 3: the label must be one of 0, 1, negative, positive",
        ),
        ("sst2", "index\tsentence\n0\ta\n", "train.tsv, line 1: the header must name label"),
        ("qnli", "", "train.tsv, line 1: the header must name question, sentence"),
        ("qnli", QNLI.replace("question", "q"), "train.tsv, line 1: the header must name question, sentence"),
        ("qnli", QNLI + "2\tsecret\tentailment\n", "train.tsv, line 4: expected 4 fields, found 3"),
        (
            "qnli",
            QNLI + "2\tsecret\tentailment\tsecret\n",
            "train.tsv, line 4: the label must be one of 0, 1, entailment, not_entailment",
        ),
        ("stsb", STSB.replace("2.5", "secret"), "train.tsv, line 2: the score must be a number in 0..5"),
        ("stsb", STSB.replace("5.0", "5.1"), "train.tsv, line 4: the score must be a number in 0..5"),
        ("stsb", STSB.replace("5.0", "nan"), "train.tsv, line 4: the score must be a number in 0..5"),
        ("stsb", STSB.replace("score", "label"), "train.tsv, line 1: the header must name score"),
    ],
)
def test_damaged_table(tmp_path, name, content, expected):
    error = message(ValueError, name, write(tmp_path, train__tsv=content))
    assert error == expected
    assert "secret" not in error


def flipped(data, place):
    return data[:place] + bytes((data[place] ^ 0xFF,)) + data[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:3],
        lambda data: flipped(data, -6),
        lambda data: flipped(data, len(data) // 2),
        lambda _: b"plain text",
    ],
    ids=["half", "start", "end", "middle", "not packed"],
)
@pytest.mark.parametrize(("suffix", "kind"), [(".gz", "gzip"), (".xz", "xz")])
def test_damaged_archive(tmp_path, suffix, kind, damage):
    (tmp_path / f"train.tsv{suffix}").write_bytes(damage(PACK[suffix](SST2.encode())))
    error = message(ValueError, "sst2", tmp_path)
    assert error.startswith(f"train.tsv{suffix}: expected a whole {kind} file, found a damaged one (")
    assert "fine film" not in error


@pytest.mark.parametrize("suffix", PACK)
def test_other_encodings(tmp_path, suffix):
    (tmp_path / f"input.txt{suffix}").write_bytes(PACK[suffix]("schön".encode("latin-1")))
    expected = f"input.txt{suffix}: expected UTF-8, found another byte at place 3"
    assert message(ValueError, "tinyshakespeare", tmp_path) == expected


def test_byte_order_mark_is_no_text(tmp_path):
    write(tmp_path, train__tsv="\ufeff" + QNLI)
    assert load("qnli", tmp_path).train.labels == [0, 1]


def test_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "LARGEST", 100)
    write(tmp_path, input__txt__xz=lzma.compress(bytes(10**6)))
    assert (
        message(ValueError, "tinyshakespeare", tmp_path)
        == "input.txt.xz: expected at most 100 bytes of text, found more"
    )
    write(tmp_path, input__txt=bytes(100))
    assert len(load("tinyshakespeare", tmp_path).train) == 90
