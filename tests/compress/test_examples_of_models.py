"""How models of several kinds get their texts and classes: what stands before a text, and which class is which."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models import sentences, tokenizer
from transformers import PreTrainedTokenizerFast
from zoo import network

from greenformers.changes import Heal
from greenformers.compress.job import Job
from greenformers.compress.quality import judge
from greenformers.compress.reading import read_parts
from greenformers.compress.run import files_of
from greenformers.compress.unfinished import Unfinished
from greenformers.data._read_texts import read_texts
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts, batches, check_block


def beginning_with_bos() -> PreTrainedTokenizerFast:
    words = tokenizer("gpt2").backend_tokenizer
    from tokenizers import processors

    words.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="[CLS]", eos_token="[SEP]", unk_token="[UNK]")


def test_blocks_begin_as_the_tokenizer_begins_a_text() -> None:
    words = beginning_with_bos()
    assert words("bar")["input_ids"][0] == words.bos_token_id
    texts = sentences(20)
    blocks = torch.cat([batch["input_ids"] for batch in batches(texts, words, "causal_lm", 8)])
    assert blocks.shape[1] == 8
    assert (blocks[:, 0] == words.bos_token_id).all()
    plain = torch.cat([batch["input_ids"] for batch in batches(texts, tokenizer("gpt2"), "causal_lm", 7)])
    assert blocks[:, 1:].equal(plain), "and hold the running text"


def test_text_without_a_block_is_told_before_the_work() -> None:
    words = beginning_with_bos()
    check_block(["bar dos kit"], words, 4)
    with pytest.raises(ValueError, match="the text has 3 tokens; one block of 5 is needed"):
        check_block(["bar dos kit"], words, 5)


@pytest.mark.parametrize("label2id", [{"dark": "0", "light": "1"}, {"light": 0, "dark": 1}, None])
def test_classes_are_those_that_the_model_names(label2id: Any) -> None:
    model = network("vit", id2label={0: "dark", 1: "light"}, label2id=label2id)
    assert Reader.of(model, None, 16, features=object()).number("light") == 1


def test_what_is_no_number_is_wrong() -> None:
    model: Any = network("bert", "BertForSequenceClassification")
    with torch.no_grad():
        model.classifier.bias.fill_(float("nan"))
    texts = Texts("texts", [(text,) for text in sentences(10)], [0.0] * 10)
    assert judge({"own": model}, texts, Reader.of(model, tokenizer("bert"), 16))["own"]["accuracy"][0] == 0


def test_a_file_says_its_split_before_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "train_test_split"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / f"{name}.txt").write_text(name)
    texts, judged = read_texts(tmp_path)
    assert judged is not None
    assert (texts.segments, judged.segments) == ([("train",)], [("test",)])


def test_labels_of_what_is_learned_from_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "learned.tsv").write_text("text\tlabel\n" + "".join(f"{n}\tgood\n" for n in range(9)))
    (tmp_path / "judging.tsv").write_text("text\tlabel\nx\t1\n")
    reader: Any = SimpleNamespace(kind="text", classes={}, check=lambda _: None)
    job = Job(heal_texts=tmp_path / "learned.tsv", evaluate=tmp_path / "judging.tsv")
    parts: Any = read_parts([Heal()], job, reader)
    assert parts["training"].labels is None
    assert len(parts["training"]) == 9
    assert parts["judging"].labels == [1]


def test_unfinished_work_is_of_the_configuration_and_not_of_itself(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"x")

    def folder() -> Path:
        return Unfinished.of(model / "small", [], files_of(str(model), Job())).folder

    before = folder()
    (before / "step-0").mkdir(parents=True)
    (before / "step-0" / "model.safetensors").write_bytes(b"y")
    assert folder() == before
    (model / "config.json").write_text('{"a": 1}')
    assert folder() != before
