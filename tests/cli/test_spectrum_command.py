"""`greenformers spectrum`, as a user meets it: what it prints, what it leaves on disk, and how it refuses."""

import lzma
import shutil
from pathlib import Path

import pytest
from command_line import refused, run
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import BertConfig, BertModel, FNetConfig, FNetModel, PreTrainedTokenizerFast

from greenformers.checkpoint.pretrained import model_name
from greenformers.measure.record import read

pytestmark = pytest.mark.usefixtures("drafts", "verbosity")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"bcdefghij"]
LINES = ["b c d e f g", "h i j", "c e g i b d f h j", "j i h g"]
SMALL = {"vocab_size": 13, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 20, "pad_token_id": 0}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and texts, that no command changes."""
    root = tmp_path_factory.mktemp("home")
    words = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"num_attention_heads": 2, "max_position_embeddings": 16}
    BertModel(BertConfig(**SMALL, **sizes)).save_pretrained(root / "bert")
    BertModel(BertConfig(**SMALL, **sizes)).save_pretrained(root / "wordless")
    FNetModel(FNetConfig(**SMALL)).save_pretrained(root / "fnet")
    for name in ("bert", "fnet"):
        tokenizer.save_pretrained(root / name)
    (root / "texts.txt").write_text("\n".join(LINES * 3))
    (root / "texts.txt.xz").write_bytes(lzma.compress(("\n".join(LINES * 3)).encode()))
    (root / "short.txt").write_text("b c d\n")
    (root / "empty.txt").write_text("\n \n")
    (root / "file").write_text("dear to me")
    return root


def test_a_model_is_called_by_its_name_or_that_of_its_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder = tmp_path / "my-run" / "model"
    shutil.copytree(home / "bert", run_folder)
    for model, expected in ((str(run_folder), "my-run"), (str(home / "bert"), "bert"), ("org/name", "org/name")):
        assert model_name(model) == expected
    words = f"spectrum {run_folder} --texts {home / 'texts.txt'} --length 12 --index 3 --limit 1 --name Mine".split()
    assert run(monkeypatch, *words, "--out", str(tmp_path / "out")) == 0
    assert "<h1>Mine: spectrum of attention</h1>" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize("texts", ["texts.txt", "texts.txt.xz"])
def test_a_model_and_its_texts(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], texts: str
) -> None:
    out, results = tmp_path / "deep" / "out", tmp_path / "results.jsonl"
    words = f"spectrum {home / 'bert'} --texts {home / texts} --length 12 --index 3 --share 0.8 --limit 4".split()
    for times in (1, 2):
        assert run(monkeypatch, *words, "--out", str(out), "--results", str(results)) == 0
        assert len(read(results)) == 4 * times
    shown = capsys.readouterr().out
    for text in ("First 3 of 12", "k for 0.8", "4 blocks of 12 tokens", f"report: {out / 'index.html'}"):
        assert text in shown, text
    records = read(results)
    assert {(record.benchmark, record.variant) for record in records} == {("spectrum", "bert")}
    assert records[0].setting == {"layer": 1, "texts": texts, "blocks": 4, "length": 12, "index": 3, "share": 0.8}
    assert f"{records[0].value:.3f}" in shown
    assert 3 / 12 < records[0].value <= 1
    assert records[1].value in (8, 12)
    assert (out / "spectrum.png").read_bytes().startswith(b"\x89PNG")
    assert str(home) not in (out / "index.html").read_text()


def test_of_a_table_the_texts_alone_are_read(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "labelled.tsv"
    table.write_text("sentence\tlabel\n" + "".join(f"{line}\tgood\n" for line in LINES))
    words = f"spectrum {home / 'bert'} --texts {table} --length 12 --index 3 --limit 1 --out".split()
    assert run(monkeypatch, *words, str(tmp_path / "out")) == 0


def test_fewer_blocks_than_the_limit(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home / "bert")
    words = f"spectrum . --texts ../texts.txt --length 12 --index 3 --out {tmp_path}"
    assert run(monkeypatch, *words.split()) == 0
    assert "6 blocks of 12 tokens" in capsys.readouterr().out  # 66 words, 10 a block
    assert "bert: spectrum of attention" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bert --texts short.txt --length 12 --index 3", "the text has 3 tokens; one block of length 12 takes 10"),
        ("bert --texts empty.txt --length 12 --index 3", "empty.txt holds no text"),
        ("bert --texts nowhere.txt", "nowhere.txt: No such file or directory"),
        ("bert --texts texts.txt --length 12", "index must be in 1..12, the length of a block; got 128"),
        ("bert --texts texts.txt --length 12 --index 0", "index must be in 1..12, the length of a block; got 0"),
        ("bert --texts texts.txt --length 17 --index 3", "length must be at most 16, the positions of the model"),
        ("bert --texts texts.txt --length 2 --index 1", "length must be above 2, the special tokens around a text"),
        ("bert --texts texts.txt --limit 0", "limit must be at least 1, got 0"),
        ("bert --texts texts.txt --share 0", "share must be in (0, 1], got 0"),
        ("bert --texts texts.txt --share nan", "share must be in (0, 1], got nan"),
        ("bert --texts texts.txt --out file", "out must be a folder, and file is a file"),
        ("./nowhere --texts texts.txt", "./nowhere is not a folder with a model"),
        ("wordless --texts texts.txt", "wordless has no tokenizer, which texts need"),
        ("fnet --texts texts.txt --length 12 --index 3", "FNetModel gives no attention weights (N, N) of its layers"),
    ],
)
def test_refusals(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(home)
    before = sorted(home.rglob("*"))
    assert message in refused(monkeypatch, capsys, "spectrum", *words.split())
    assert sorted(home.rglob("*")) == before
