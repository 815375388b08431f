"""OpenVINO GenAI reads the folder of a language model, and writes what the model writes."""

from pathlib import Path

import pytest
import torch
from models import sentences
from transformers import PreTrainedTokenizerFast
from zoo import network

import greenformers
from greenformers.changes import LowRank
from greenformers.data import train_tokenizer
from greenformers.export import genai
from greenformers.export.loading import loading_in_genai
from greenformers.export.write import FORMATS, write

openvino_genai = pytest.importorskip("openvino_genai", reason="the genai extra is not installed")
HOME, NEW = Path(FORMATS["openvino"]).parent, 12


@pytest.fixture(scope="module")
def subwords() -> PreTrainedTokenizerFast:
    return train_tokenizer("bpe", [" ".join(sentences(300))], vocab_size=300, max_length=64)


@pytest.mark.slow
def test_it_writes_what_the_model_writes(
    subwords: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network("llama", num_hidden_layers=1, vocab_size=len(subwords), eos_token_id=None)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10 if parameter.dim() == 2 else 1)
    greenformers.compress(model, LowRank(keep=0.5))
    model.generation_config.eos_token_id = None
    monkeypatch.setattr(
        subwords, "chat_template", "{% for message in messages %}lumi {{ message['content'] }}{% endfor %}"
    )
    assert write(model, tmp_path, ["openvino"], tokenizer=subwords, length=16).unread == ""
    pipeline = openvino_genai.LLMPipeline(str(tmp_path / HOME), "CPU", INFERENCE_PRECISION_HINT="f32")
    text = "bar dor"
    tokens = subwords(text, return_tensors="pt")
    ids = model.generate(**tokens, max_new_tokens=NEW, do_sample=False)[0, tokens["input_ids"].shape[1] :]
    assert len(set(ids.tolist())) > 2
    right = subwords.decode(ids, skip_special_tokens=True)
    assert pipeline.generate(text, max_new_tokens=NEW, apply_chat_template=False) == right
    assert pipeline.generate(text, max_new_tokens=NEW) != right
    assert "max_new_tokens=20, apply_chat_template=False)" in loading_in_genai(subwords)
    assert "max_new_tokens=20)" in loading_in_genai(None)


def test_what_cannot_be_read_is_said(
    subwords: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert genai.add_tokenizer(tmp_path, tmp_path, None) == "the model has no tokenizer"
    monkeypatch.setattr(genai, "TRIED", ("\ufffd\u200b" * 3,))
    monkeypatch.setattr(type(subwords), "decode", lambda *_, **__: "something else")
    assert "differently" in genai.add_tokenizer(tmp_path, tmp_path, subwords)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(genai, "LIBRARY", "a_library_that_is_not_there")
    assert "comes with the extra genai" in genai.add_tokenizer(tmp_path, tmp_path, subwords)


def test_texts_of_a_batch_end_together(subwords: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    import openvino
    import openvino_tokenizers  # noqa: F401  # which makes its operators known

    subwords.pad_token = subwords.pad_token or subwords.eos_token
    side = subwords.padding_side
    assert genai.add_tokenizer(tmp_path, tmp_path, subwords) == ""
    assert subwords.padding_side == side
    encode = openvino.Core().compile_model(tmp_path / genai.PROGRAMS[0], "CPU")
    texts = ["bar", "dos kit lun mes nalo"]
    right = subwords(texts, padding=True, padding_side="left")
    assert encode(texts)["attention_mask"].tolist() == right["attention_mask"]
