"""`greenformers cleanse`, as a user meets it: the tables it writes, and how it refuses."""

import inspect
from pathlib import Path

import pytest
import torch
import transformers
from command_line import refused, refused_unchanged, run
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from greenformers.measure.label_errors import SCORES

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"bcdefghij"]
ROWS = [("b c", 0), ("h i", 1), ("c b", 0), ("i h j", 1)] * 6


def table(rows: list[tuple[str, int]]) -> str:
    return "sentence\tlabel\n" + "".join(f"{sentence}\t{label}\n" for sentence, label in rows)


pytestmark = pytest.mark.usefixtures("verbosity")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and tables, that no command changes."""
    root = tmp_path_factory.mktemp("home")
    words = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    config = BertConfig(
        vocab_size=13, hidden_size=24, num_hidden_layers=1, intermediate_size=20, num_attention_heads=2,
        max_position_embeddings=16, pad_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(root / "bert")
    tokenizer.save_pretrained(root / "bert")
    (root / "train.tsv").write_text(table([("b c", 1), *ROWS[1:]]))
    (root / "right.tsv").write_text(table(ROWS[4:]))
    (root / "single.tsv").write_text(table([ROWS[0]] * 8))
    (root / "plain.txt").write_text("b c\nh i\n")
    return root


FAST = "--epochs 10 --batch 4 --learning-rate 0.01 --length 8 --share 0.05"


@pytest.mark.parametrize(
    "more", ["", "--folds 1", "--trusted right.tsv --score influence"], ids=["folds", "one", "trusted"]
)
def test_a_wrong_label_is_listed_and_left_out(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: str
) -> None:
    monkeypatch.chdir(home)
    out, rest = tmp_path / "new" / "suspicious.tsv", tmp_path / "rest.tsv"
    words = f"cleanse bert --texts train.tsv {FAST} --out {out} --rest {rest} {more}"
    assert run(monkeypatch, *words.split()) == 0
    shown = capsys.readouterr().out
    assert "the 1 most suspicious of 24 rows" in shown
    assert ("labels are wrong by confident learning" in shown) == (not more)
    header, *lines = out.read_text().splitlines()
    assert header == "line\tscore\tlabel\tpredicted\tsentence"
    (line, _, *row), = (text.split("\t") for text in lines)  # fmt: skip
    assert (line, row) == ("2", ["1", "0", "b c"])
    assert rest.read_text() == table(ROWS[1:])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train.tsv --share 0", "share must be between 0 and 1, got 0"),
        ("train.tsv --score aum", "score must be one of margin, confidence, variability, forgetting, "),
        ("train.tsv --folds 0", "folds must be at least 1, got 0"),
        ("train.tsv --score influence", "trusted must be given with score influence, and with no other; the score is "),
        ("train.tsv --trusted right.tsv", "and with no other; the score is margin"),
        ("train.tsv --trusted right.tsv --score influence --folds 2", "folds must be 1 with trusted, got 2"),
        ("single.tsv", "single.tsv must have rows of at least 2 classes, has 1"),
        ("plain.txt", "plain.txt must be a table .tsv with the columns sentence and label"),
        ("train.tsv --batch 4 --folds 25", "folds must be in 2..24, got 25"),
        ("train.tsv --rest train.tsv", "texts, trusted, out and rest must be files of their own: one is named twice"),
        ("nowhere.tsv", "nowhere.tsv: No such file or directory"),
    ],
)
def test_refusals(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: str, message: str,
) -> None:  # fmt: skip
    out = tmp_path / "out"
    out.mkdir()
    given = f"cleanse bert --out {out / 'a.tsv'} --texts {words}"
    assert message in refused_unchanged(monkeypatch, capsys, home, out, *given.split())


def test_a_model_with_fewer_classes(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = transformers.BertForSequenceClassification.from_pretrained(home / "bert", num_labels=2)
    model.save_pretrained(tmp_path / "two")
    transformers.AutoTokenizer.from_pretrained(home / "bert").save_pretrained(tmp_path / "two")
    (tmp_path / "three.tsv").write_text(table([*ROWS, ("d e", 2)]))
    capsys.readouterr()
    words = f"cleanse {tmp_path / 'two'} --texts {tmp_path / 'three.tsv'} --out {tmp_path / 'out.tsv'}"
    said = refused(monkeypatch, capsys, *words.split())
    assert said.endswith("the labels must be in 0..1, the classes of the model, got 2")


def test_an_encoder_with_another_attention_gives_no_classifier(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    swapped = f"--attention sliding_window --attention-option window=2 --out {tmp_path / 'swapped'}"
    assert run(monkeypatch, *f"compress {home / 'bert'} {swapped}".split()) == 0
    capsys.readouterr()
    words = f"cleanse {tmp_path / 'swapped'} --texts {home / 'train.tsv'} --out {tmp_path / 'out.tsv'}"
    said = refused(monkeypatch, capsys, *words.split())
    assert said.endswith("model must be a classifier, or an encoder before compression; got one after attention")


def test_the_help_names_every_score() -> None:
    from greenformers.cli.cleanse import cleanse

    (option,) = (part for part in inspect.get_annotations(cleanse)["score"].__metadata__)
    named = option.help.removeprefix("Score of a row: ").partition(", which")[0].replace(" or ", ", ").split(", ")
    assert named == list(SCORES)
