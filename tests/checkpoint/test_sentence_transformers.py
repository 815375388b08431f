"""Folders of sentence-transformers: compressed, they keep their modules, and are judged by their own pooling."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import refused, run
from models import pairs, sentences
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer
from torch import nn
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast
from zoo import network

import greenformers
from greenformers.changes import Bits, Heal, Int8, LowRank, Narrow
from greenformers.checkpoint import pooling, sentence
from greenformers.checkpoint.pooling import read_pooling
from greenformers.checkpoint.pretrained import pretrained
from greenformers.checkpoint.sentence import sentence_folder
from greenformers.compress.from_disk import compress_from_disk
from greenformers.compress.quality import embed
from greenformers.data._pooling import pooling_of
from greenformers.export import deploy as deploying

Patch, Captured = pytest.MonkeyPatch, pytest.CaptureFixture[str]
TEXTS = ["bar", "dos kit lun mes nalo bar bar dor kin", "lumi mes"]
LONGEST = 7  # shorter than the second text
STRANGER = "import sys; from sentence_transformers import SentenceTransformer as S; S(sys.argv[1], device='cpu')"


def wordpiece() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        sentences(200), WordPieceTrainer(vocab_size=53, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, special, strict=True)))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer alone."""
    folder = tmp_path_factory.mktemp("bert")
    model = network("bert", "BertModel")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1)
    model.save_pretrained(folder)
    wordpiece().save_pretrained(folder)
    return folder


def written(bert: Path, out: Path, *modules: nn.Module) -> Path:
    transformer = Transformer(str(bert), max_seq_length=LONGEST)
    SentenceTransformer(modules=[transformer, *modules], device="cpu").save(str(out), create_model_card=False)
    return out


def legacy(folder: Path, inner: str = "") -> Path:
    """The same as versions before 6 wrote it, the transformer in a folder of its own where `inner` names one."""
    listed = json.loads((folder / "modules.json").read_text())
    for entry in listed:
        entry["type"] = "sentence_transformers.models." + entry["type"].rpartition(".")[2]
    listed[0]["path"] = inner
    (folder / "modules.json").write_text(json.dumps(listed))
    settings = json.loads((folder / "1_Pooling" / "config.json").read_text())
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    modes = {f"pooling_mode_{name}": name.startswith(settings["pooling_mode"]) for name in names}
    described = {"word_embedding_dimension": settings["embedding_dimension"]} | modes
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(described))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LONGEST, "do_lower_case": False}))
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(told | {"model_max_length": 2 * LONGEST}))
    if inner:
        (folder / inner).mkdir()
        root_files = ("modules.json", "config_sentence_transformers.json")
        for path in [path for path in folder.iterdir() if path.is_file() and path.name not in root_files]:
            path.rename(folder / inner / path.name)
    return folder


def kinds(model: SentenceTransformer) -> list[str]:
    return [type(module).__name__ for module in model]


def encoded(model: Any) -> torch.Tensor:
    return torch.tensor(model.encode(TEXTS, show_progress_bar=False))


def ours(model: Any, tokenizer: Any, length: int = LONGEST) -> torch.Tensor:
    """The embeddings of a model in memory, by our own reading of its modules."""
    batch = tokenizer(TEXTS, truncation=True, max_length=length, padding=True, return_tensors="pt")
    with torch.no_grad():
        return pooling_of(model)(model(**batch).last_hidden_state, batch["attention_mask"])


@pytest.mark.parametrize("inner", [None, "0_Transformer"])
def test_by_the_command(bert: Path, tmp_path: Path, monkeypatch: Patch, inner: str | None) -> None:
    folder = written(bert, tmp_path / "st", Pooling(32, "cls"), Normalize())
    if inner is not None:
        legacy(folder, inner)
    before = SentenceTransformer(str(folder), device="cpu")
    texts = pairs(tmp_path / "pairs.tsv")
    out = tmp_path / "small"
    words = ["--evaluate", str(texts), "--lengths", "", "--solver", "svd", "--keep", "0.5"]
    assert run(monkeypatch, "compress", str(folder), *words, "--out", str(out)) == 0
    again = SentenceTransformer(str(out), device="cpu")
    assert kinds(again) == kinds(before) == ["Transformer", "Pooling", "Normalize"]
    assert again.max_seq_length == before.max_seq_length == LONGEST
    expected, _ = pretrained(str(folder))
    greenformers.compress(expected, LowRank(keep=0.5, solver="svd"))
    torch.testing.assert_close(encoded(again), ours(expected, before.tokenizer), rtol=0, atol=1e-6)
    torch.testing.assert_close(encoded(again).norm(dim=-1), torch.ones(len(TEXTS)))
    assert (encoded(again) - encoded(before)).abs().max() > 1e-3
    assert "SentenceTransformer(" in (out / "README.md").read_text()
    # What was compressed is a folder of sentence-transformers again.
    assert read_pooling(sentence_folder(out)).modes == ("cls",)
    compress_from_disk(folder, tmp_path / "streamed", [LowRank(keep=0.5, solver="svd")])
    streamed = SentenceTransformer(str(tmp_path / "streamed"), device="cpu")
    assert streamed.max_seq_length == LONGEST
    torch.testing.assert_close(encoded(streamed), encoded(again), rtol=0, atol=1e-5)


def test_in_python(bert: Path, tmp_path: Path) -> None:
    """A SentenceTransformer as a whole, its transformer alone, and the transformer read by transformers."""
    folder = written(bert, tmp_path / "st", Pooling(32, "cls"), Normalize())
    whole, part = (SentenceTransformer(str(folder), device="cpu") for _ in range(2))
    report = greenformers.compress(whole, 0.5)
    greenformers.save(whole, tmp_path / "whole", report)
    greenformers.compress(part[0].auto_model, 0.5)
    part.save(str(tmp_path / "own"), create_model_card=False)
    greenformers.save(part[0].auto_model, tmp_path / "part")  # whose folder is known
    plain = AutoModel.from_pretrained(folder)
    greenformers.compress(plain, 0.5)
    greenformers.save(plain, tmp_path / "plain", tokenizer=AutoTokenizer.from_pretrained(folder))
    for name in ("whole", "own", "part", "plain"):
        again = SentenceTransformer(str(tmp_path / name), device="cpu")
        assert kinds(again) == kinds(whole), name
        assert again.max_seq_length == LONGEST, name
        torch.testing.assert_close(encoded(again), encoded(whole), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="save the SentenceTransformer"):
        greenformers.save(whole[0].auto_model, tmp_path / "lost")
    assert not (tmp_path / "lost").exists()
    # A network of another class has read the weights alone.
    other = type(network("bert")).from_pretrained(folder)
    greenformers.compress(other, 0.5)
    assert not (greenformers.save(other, tmp_path / "other") / "modules.json").exists()


@pytest.mark.parametrize(
    "modules",
    [
        lambda: [Pooling(32, "lasttoken")],
        lambda: [Pooling(32, ("mean_sqrt_len_tokens", "max")), Normalize()],
        lambda: [Pooling(32, ("weightedmean", "mean")), Dense(64, 16), LayerNorm(16)],
        lambda: [Pooling(32), Normalize(), Dense(32, 32, activation_function=nn.GELU(), use_residual=True)],
        lambda: [Pooling(32), Dense(32, 8, bias=False, activation_function=None, use_residual=True)],
    ],
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_every_pooling_is_that_of_sentence_transformers(bert: Path, tmp_path: Path, modules: Any, side: str) -> None:
    model = SentenceTransformer(str(written(bert, tmp_path, *modules())), device="cpu")
    model.tokenizer.padding_side = side
    network, _ = pretrained(str(tmp_path))
    torch.testing.assert_close(ours(network, model.tokenizer), encoded(model), rtol=1e-5, atol=1e-5)
    if side == "right":
        greenformers.save(model, tmp_path / "small", greenformers.compress(model, 0.5))
        again = SentenceTransformer(str(tmp_path / "small"), device="cpu")
        torch.testing.assert_close(encoded(again), encoded(model), rtol=0, atol=1e-6)


def test_int8(bert: Path, tmp_path: Path) -> None:
    """The further modules get the type of the transformer's first parameter, which was int8."""
    model = SentenceTransformer(str(written(bert, tmp_path / "st", Pooling(32), Dense(32, 16))), device="cpu")
    before = encoded(model)
    greenformers.save(model, tmp_path / "small", greenformers.compress(model, [LowRank(keep=0.9), Int8()]))
    again = SentenceTransformer(str(tmp_path / "small"), device="cpu")
    assert again.dtype == torch.float32
    torch.testing.assert_close(encoded(again), encoded(model), rtol=0, atol=1e-6)
    assert not torch.equal(before, encoded(again))


def test_judged_calibrated_and_healed_by_its_own_pooling(bert: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    folder = written(bert, tmp_path / "st", Pooling(32, "cls"), Dense(32, 5), Normalize())
    network, tokenizer = pretrained(str(folder))
    model = SentenceTransformer(str(folder), device="cpu")
    torch.testing.assert_close(embed(network, TEXTS, tokenizer, LONGEST), encoded(model), rtol=1e-5, atol=1e-5)
    from greenformers.changes import _student

    lengths: set[int] = set()
    pooled: set[str] = set()
    plain = _student.Student._part

    def watched(student: Any, name: str, student_output: Any, teacher_output: Any, batch: Any) -> Any:
        lengths.add(batch["attention_mask"].shape[1])
        pooled.update(student.pooling.modes)
        return plain(student, name, student_output, teacher_output, batch)

    monkeypatch.setattr(_student.Student, "_part", watched)
    texts = [" ".join(sentences(2, seed)) for seed in range(40)]
    recipe = [LowRank(keep=0.5, solver="loss"), Heal(2, batch_size=4)]
    report = greenformers.compress(model, recipe, texts=texts)
    assert len(report.steps) == 2
    assert pooled == {"cls"}
    assert max(lengths) == LONGEST
    greenformers.save(model, tmp_path / "small", report)
    # With another pooling the loss has another curvature, and the same budget other weights.
    means = written(bert, tmp_path / "mean", Pooling(32))
    first, second = (SentenceTransformer(str(name), device="cpu") for name in (folder, means))
    for each in (first, second):
        greenformers.compress(each, LowRank(keep=0.5, solver="loss"), texts=texts)
    layers = [each[0].auto_model.encoder.layer[0].output.dense for each in (first, second)]
    assert not torch.equal(layers[0](torch.ones(1, 44)), layers[1](torch.ones(1, 44)))


def spoilt() -> Iterator[tuple[str, str, Any]]:
    """What is refused: the words, the file and what is put into it, or done to it."""
    listed = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    pool = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    yield "is not JSON", "modules.json", "{"
    yield "must hold a list of modules", "modules.json", "{}"
    yield "asks for code of its own (custom.Model)", "modules.json", [*listed, {"path": "1", "type": "custom.Model"}]
    yield "'../st'", "modules.json", [*listed, pool | {"path": "../st"}]
    yield "first module must be a Transformer, got Pooling", "modules.json", [pool]
    yield "got BoW", "modules.json", [*listed, {"path": "2_Dense", "type": "sentence_transformers.models.BoW"}]
    yield "max_seq_length", "sentence_bert_config.json", {"max_seq_length": 0}
    yield "pooling_mode must be of cls, max", "1_Pooling/config.json", {"pooling_mode": "median"}
    yield "must take 64 numbers a text, got 32", "1_Pooling/config.json", {
        "embedding_dimension": 32, "pooling_mode": ["cls", "max"],
    }  # fmt: skip
    yield "must read and write sentence_embedding", "2_Dense/config.json", {"module_input_name": "token_embeddings"}
    yield "activation_function must be", "2_Dense/config.json", {"activation_function": "os.system"}
    yield "activation_function must be", "2_Dense/config.json", {"activation_function": "torch.nn.Linear"}
    yield "activation_function must be", "2_Dense/config.json", {"activation_function": "torch.nn.PReLU"}
    yield "pytorch_model.bin is a pickle", "2_Dense/model.safetensors", None


def test_what_is_refused(bert: Path, tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    """In one line, before any work, by the command and in Python."""
    good = written(bert, tmp_path / "good", Pooling(32, "cls"), Dense(32, 16))
    for said, name, content in spoilt():
        folder = Path(shutil.copytree(good, tmp_path / "st", dirs_exist_ok=True))
        path = folder / name
        if content is None:
            path.rename(path.with_name("pytorch_model.bin"))
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        line = refused(monkeypatch, capsys, "compress", str(folder), "--out", str(tmp_path / "out"))
        assert said in line, line
        model = AutoModel.from_pretrained(folder)
        with pytest.raises(ValueError, match=re.escape(said)):
            greenformers.compress(model, 0.5)
        with pytest.raises(ValueError, match=re.escape(said)):
            compress_from_disk(folder, tmp_path / "out", [LowRank(keep=0.5)])
        assert not (tmp_path / "out").exists()
        shutil.rmtree(folder)


def test_from_the_hub_the_modules_come_too(bert: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    folder, asked = written(bert, tmp_path, Pooling(32, "cls")), []

    def snapshot(name: str, allow_patterns: list[str]) -> str:
        assert "modules.json" in allow_patterns
        asked.append(name)
        if name != "some/encoder":
            raise OSError("no such repository")
        return str(folder)

    monkeypatch.setattr(sentence, "snapshot_download", snapshot)
    place = sentence_folder("some/encoder")
    assert place is not None
    assert read_pooling(place).modes == ("cls",)
    assert sentence_folder("some/other") is None
    assert sentence_folder("./none") is None
    assert asked == ["some/encoder", "some/other"]
    # A model that transformers read from there has them too; what was never read from there is not asked for.
    monkeypatch.setattr(
        pooling, "try_to_load_from_cache", lambda name, file: str(folder / file) if "some" in name else None
    )
    for name in ("some/encoder", "some/encoder", "folder/gone"):
        model = AutoModel.from_pretrained(folder)
        model.name_or_path = name
        pooling.know(model)
        assert pooling_of(model).modes == (("cls",) if name == "some/encoder" else ("mean",))
    assert asked == ["some/encoder", "some/other", "some/encoder"]


@pytest.mark.slow
def test_without_greenformers_nothing_is_loaded(bert: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(written(bert, tmp_path / "st", Pooling(32, "cls"))), device="cpu")
    folder = greenformers.save(model, tmp_path / "small", greenformers.compress(model, 0.5))
    shown = subprocess.run(
        [sys.executable, "-c", STRANGER, str(folder)], capture_output=True, text=True, check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert shown.returncode != 0
    assert "ignore_mismatched_sizes" in shown.stderr


def test_narrower_vectors_are_said_to_be_narrower(bert: Path, tmp_path: Path) -> None:
    whole = SentenceTransformer(modules=[Transformer(str(bert), max_seq_length=LONGEST), Pooling(32)], device="cpu")
    greenformers.compress(whole, Narrow(hidden=24), texts=sentences(40))
    again = SentenceTransformer(str(greenformers.save(whole, tmp_path / "narrow")), device="cpu")
    assert again.get_embedding_dimension() == again.encode("bar").shape[0] == 24
    modules = [Transformer(str(bert), max_seq_length=LONGEST), Pooling(32), Dense(32, 16)]
    whole = SentenceTransformer(modules=modules, device="cpu")
    with pytest.raises(ValueError, match="take vectors of its hidden size: keep hidden as it is"):
        greenformers.compress(whole, Narrow(hidden=24), texts=sentences(40))


def test_an_export_says_how_wide_its_vectors_are(bert: Path, tmp_path: Path) -> None:
    folder = written(bert, tmp_path / "whole", Pooling(32))
    model = AutoModel.from_pretrained(folder)
    words = AutoTokenizer.from_pretrained(folder)
    greenformers.compress(model, Narrow(hidden=24), texts=sentences(40), tokenizer=words)
    greenformers.export(model, tmp_path / "out", ["program"])
    assert json.loads((tmp_path / "out/1_Pooling/config.json").read_text())["embedding_dimension"] == 24
    assert "SentenceTransformer" not in (tmp_path / "out/README.md").read_text()  # which reads no programs


def test_an_export_takes_tokenizer_and_length_from_the_folder(bert: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    folder = written(bert, tmp_path / "whole", Pooling(32))
    told = json.loads((folder / "tokenizer_config.json").read_text())
    told["model_input_names"] = ["input_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    lengths: list[int] = []
    plain = deploying.deploy

    def watched(*given: Any, length: int, **options: Any) -> Any:
        lengths.append(length)
        return plain(*given, length=length, **options)

    monkeypatch.setattr(deploying, "deploy", watched)
    greenformers.export(AutoModel.from_pretrained(folder), tmp_path / "out", ["torch", "program"])
    assert lengths == [LONGEST]
    monkeypatch.chdir(tmp_path / "out")
    card = Path("README.md").read_text()
    assert "Inputs are `input_ids`, `attention_mask`, int64" in card
    for block in re.findall(r"```python\n(.*?)```", card, re.DOTALL):
        exec(block, {})


def test_an_export_in_few_bits_is_read_by_sentence_transformers(bert: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    model = AutoModel.from_pretrained(written(bert, tmp_path / "whole", Pooling(32)))
    greenformers.compress(model, Bits(8, per="row", symmetric=True, by="rounding", select=("linear",)))
    greenformers.export(model, tmp_path / "out", ["compressed-tensors"])
    monkeypatch.chdir(tmp_path / "out")
    shown: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL)[-1], shown)
    assert isinstance(shown["model"], SentenceTransformer)
    assert shown["embeddings"].shape == (2, 32)
