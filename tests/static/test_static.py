"""A vector for each token: the formulas beside dense oracles, the folder beside sentence-transformers, the command."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from command_line import refused, run
from models import folder, pairs, sentences
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

import greenformers
from greenformers.checkpoint.pretrained import pretrained
from greenformers.compress.quality import embed
from greenformers.measure.record import read
from greenformers.static.folder import KEY, WEIGHTS, StaticEncoder
from greenformers.static.learn import learn
from greenformers.static.table import A, Bags, beginning, directions, least_squares

Patch, Captured = pytest.MonkeyPatch, pytest.CaptureFixture[str]
TEXTS = ["bar", "dos kit lun mes nalo bar bar dor kin", "lumi mes"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("bert"), "bert", "BertModel")


def drawn(count: int = 120, vocabulary: int = 30) -> tuple[Bags, Tensor]:
    """Bags, one of them empty, and the dense matrix of their shares."""
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randint(0, 25, (at % 7,), generator=draw).tolist() for at in range(count)]
    X = torch.zeros(count, vocabulary)
    for row, text in zip(X, texts, strict=True):
        for token in text:
            row[token] += 1 / len(text)
    return Bags.of(texts, vocabulary), X


def test_bags_are_the_matrix_of_shares() -> None:
    bags, X = drawn()
    E, R = torch.randn(30, 4), torch.randn(120, 4)
    torch.testing.assert_close(bags.means(E), X @ E)
    torch.testing.assert_close(bags.spread()(R), X.T @ R)
    counts = torch.bincount(bags.ids, minlength=30).double() + 1
    torch.testing.assert_close(bags.shares(), counts / counts.sum())


@pytest.mark.parametrize("ridge", [0.01, 0.3, 10.0])
def test_the_vectors_are_those_of_least_squares(ridge: float) -> None:
    bags, X = drawn()
    Y, E_0 = torch.randn(120, 4), torch.randn(30, 4)
    E = least_squares(bags, Y, E_0, ridge, steps=200)
    expected = torch.linalg.solve((X.T @ X).double() + ridge * torch.eye(30), (X.T @ Y + ridge * E_0).double())
    torch.testing.assert_close(E.double(), expected, rtol=1e-2, atol=1e-2)
    # Tokens that are in no text stay as they began.
    assert torch.equal(E[25:], E_0[25:])
    again = least_squares(bags, Y, E_0, ridge, steps=200, begin=E)
    torch.testing.assert_close(again.double(), expected, rtol=1e-3, atol=1e-3)


def test_the_beginning_is_weighed_by_how_rare_a_token_is() -> None:
    bags, X = drawn()
    rows, Y = torch.randn(30, 4), torch.randn(120, 4)
    E = beginning(rows, bags, Y)
    weights = A / (A + bags.shares())
    ratio = E / (rows * weights[:, None])
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=1e-5, atol=0)
    # No other multiple of it is nearer to the targets.
    near = (X @ E - Y).square().sum()
    for factor in (0.9, 1.1):
        assert (X @ (factor * E) - Y).square().sum() > near


def test_directions_hold_most_energy() -> None:
    Y = torch.randn(200, 8) * torch.tensor([5.0, 4, 3, 2, 1, 1, 1, 1])
    U, share = directions(Y, 3)
    torch.testing.assert_close(U.T @ U, torch.eye(3))
    singular = torch.linalg.svdvals(Y.double()).square()
    assert share == pytest.approx((singular[:3].sum() / singular.sum()).item())
    assert (Y @ U).square().sum() / Y.square().sum() == pytest.approx(share, rel=1e-4)


def test_it_learns_what_its_teacher_gives(bert: Path, tmp_path: Path) -> None:
    teacher, tokenizer = pretrained(str(bert))
    texts = list(dict.fromkeys(sentences(400)))
    before = {name: x.clone() for name, x in teacher.state_dict().items()}
    learned = learn(teacher, tokenizer, texts, dims=16, length=16, cache=tmp_path / "cache")
    assert all(torch.equal(x, before[name]) for name, x in teacher.state_dict().items())
    assert learned.weight.shape == (53, 16)
    assert learned.cosine > max(learned.begun, 0.5)
    encoder = StaticEncoder.of(learned.weight, tokenizer)
    fresh = sentences(60, seed=9)
    theirs = embed(teacher, fresh, tokenizer, 16)
    ours = F.normalize(encoder.encode(fresh), dim=1)
    off = ~torch.eye(60, dtype=torch.bool)
    together = torch.stack([(ours @ ours.T)[off], (theirs @ theirs.T)[off]])
    assert torch.corrcoef(together)[0, 1] > 0.6
    again = greenformers.static(
        teacher, texts, tokenizer=tokenizer, dims=16, length=16, teacher_cache=tmp_path / "cache"
    )
    assert torch.equal(again.weight, learned.weight)


def test_sentence_transformers_reads_the_folder(bert: Path, tmp_path: Path) -> None:
    _, tokenizer = pretrained(str(bert))
    torch.manual_seed(0)
    encoder = StaticEncoder.of(torch.randn(53, 8), tokenizer)
    assert encoder.save(str(tmp_path / "static"), "A card.") == tmp_path / "static"
    model = SentenceTransformer(str(tmp_path / "static"), device="cpu")
    torch.testing.assert_close(torch.tensor(model.encode(TEXTS)), encoder.encode(TEXTS), rtol=0, atol=1e-6)
    assert torch.equal(StaticEncoder.read(tmp_path / "static").encode(TEXTS), encoder.encode(TEXTS))
    assert "A card." in (tmp_path / "static" / "README.md").read_text()
    # No special tokens, and no padding: a text gets the same among others.
    torch.testing.assert_close(encoder.encode(TEXTS)[:1], encoder.encode(TEXTS[:1]), rtol=0, atol=0)
    ids = tokenizer(TEXTS[1], add_special_tokens=False)["input_ids"]
    torch.testing.assert_close(encoder.encode(TEXTS)[1], encoder.weight[ids].mean(0))


def module(folder: Path) -> None:
    (folder / "modules.json").write_text(json.dumps([{"path": "", "type": "sentence_transformers.models.Transformer"}]))


def tensor(folder: Path) -> None:
    save_file({"other": load_file(folder / WEIGHTS)[KEY]}, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("spoil", "said"), [(module, "no static encoder: its modules are Transformer"), (tensor, "other tensors than")]
)
def test_foreign_folders_are_refused(spoil: Callable[[Path], None], said: str, bert: Path, tmp_path: Path) -> None:
    _, tokenizer = pretrained(str(bert))
    StaticEncoder.of(torch.randn(53, 8), tokenizer).save(tmp_path / "static")
    spoil(tmp_path / "static")
    with pytest.raises(ValueError, match=said):
        StaticEncoder.read(tmp_path / "static")
    with pytest.raises(ValueError, match="its vectors are not finite"):
        StaticEncoder.of(torch.full((53, 8), float("nan")), tokenizer).save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_command(bert: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    texts, out = tmp_path / "texts.txt", tmp_path / "static"
    texts.write_text("\n".join(sentences(200)) + "\n")
    words = [
        "static",
        str(bert),
        "--texts",
        str(texts),
        "--evaluate",
        str(pairs(tmp_path / "pairs.tsv")),
        "--dims",
        "8",
    ]
    words += ["--out", str(out)]
    assert run(monkeypatch, *words, "--results", str(tmp_path / "r.jsonl")) == 0
    said = capsys.readouterr().out
    assert "cosine to the teacher on others" in said
    assert {(record.variant, record.metric) for record in read(tmp_path / "r.jsonl")} == {
        (name, metric) for name in ("teacher", "static") for metric in ("spearman", "latency", "size")
    }
    assert SentenceTransformer(str(out), device="cpu").encode(TEXTS).shape == (3, 8)
    labelled = tmp_path / "labelled.tsv"
    labelled.write_text("label\tsentence\n" + "".join(f"good\t{text}\n" for text in sentences(200)))
    # An earlier one is replaced, and labels are not read.
    assert run(monkeypatch, *(str(labelled) if word == str(texts) else word for word in words)) == 0
    capsys.readouterr()
    shutil.rmtree(out)
    assert "length must be at most 40, the longest input; got 999" in refused(
        monkeypatch, capsys, *words, "--length", "999"
    )
    wrong = [*words[:-3], "33", *words[-2:]]
    assert "dims must be in 1..32, the width of the teacher's embeddings; got 33" in refused(
        monkeypatch, capsys, *wrong
    )
    assert "encoders are judged by a table with the columns sentence1, sentence2 and score" in refused(
        monkeypatch, capsys, *words, "--evaluate", str(texts)
    )
    lines = pairs(tmp_path / "own.tsv").read_text().splitlines()[1:]
    judged = list(dict.fromkeys(sentence for line in lines for sentence in line.split("\t")[:2]))
    texts.write_text("\n".join([*judged, *sentences(200)]) + "\n")
    assert run(monkeypatch, *words) == 0
    assert f"{len(judged):,} texts are those to judge by: left out. " in capsys.readouterr().out.replace("\n", " ")
    shutil.rmtree(out)
    texts.write_text("\n".join(judged) + "\n")
    assert "is one to judge by: give others to learn from" in refused(monkeypatch, capsys, *words)
    texts.write_text("\n".join([text for text in sentences(100, 7) if text not in judged][:20]) + "\n")
    assert "needs at least 40 texts, got 20" in refused(monkeypatch, capsys, *words)
    assert not out.exists()


def test_what_gives_no_embeddings_is_refused(tmp_path: Path) -> None:
    model, tokenizer = pretrained(str(folder(tmp_path, "bert", "BertForMaskedLM")))
    with pytest.raises(ValueError, match="BertForMaskedLM gives no embeddings of texts"):
        greenformers.static(model, sentences(50), tokenizer=tokenizer, dims=8)
    with pytest.raises(ValueError, match="has no tokenizer of the tokenizers library"):
        greenformers.static(model, sentences(50), dims=8)


def test_what_is_no_list_of_texts_or_no_length_is_refused(bert: Path) -> None:
    teacher, tokenizer = pretrained(str(bert))
    with pytest.raises(ValueError, match="texts must be a list of texts, got a single one"):
        greenformers.static(teacher, "a text " * 20, tokenizer=tokenizer, dims=8)
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        greenformers.static(teacher, sentences(50), tokenizer=tokenizer, dims=8, length=0)


def test_tokens_that_the_teacher_does_not_have(bert: Path) -> None:
    teacher, tokenizer = pretrained(str(bert))
    assert tokenizer is not None
    tokenizer.add_tokens([f"new{number}" for number in range(20)])
    texts = list(dict.fromkeys(sentences(200)))
    encoder = greenformers.static(teacher, texts, tokenizer=tokenizer, dims=8, length=16)
    assert len(encoder.weight) == len(tokenizer) > 53
