"""transformers' pipelines on our models, with a word-level tokenizer made here."""

import pytest
import torch
from networks import FOUR, config, d, stir
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast, pipeline

from greenformers.model import GreenformerForMaskedLM, GreenformerForSequenceClassification, GreenformerModel

SPECIAL = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}
WORDS = {word: i for i, word in enumerate([*SPECIAL.values(), "green", "trees", "grow", "slowly", "here"])}
TEXTS = ["green trees grow slowly here", "trees grow"]


@pytest.fixture
def tokenizer():
    core = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    core.pre_tokenizer = Whitespace()
    core.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, WORDS[name]) for name in ("[CLS]", "[SEP]")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, **SPECIAL)


def ids(text):
    return torch.tensor([[WORDS["[CLS]"], *(WORDS[word] for word in text.split()), WORDS["[SEP]"]]])


@pytest.mark.parametrize("name", FOUR)
def test_feature_extraction(name, tokenizer):
    model = stir(GreenformerModel(config(name))).eval()
    extract = pipeline("feature-extraction", model=model, tokenizer=tokenizer, device="cpu")
    for text, (features,) in zip(TEXTS, extract(TEXTS), strict=True):
        expected = model(ids(text)).last_hidden_state[0]
        assert expected.shape == (len(text.split()) + 2, d)
        torch.testing.assert_close(torch.tensor(features), expected.detach())


@pytest.mark.parametrize("name", FOUR)
def test_text_classification_in_a_padded_batch(name, tokenizer):
    labels = {0: "low", 1: "middle", 2: "high"}
    model = stir(GreenformerForSequenceClassification(config(name, id2label=labels, pad_token_id=3))).eval()
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu", top_k=None)
    for text, scores in zip(TEXTS, classify(TEXTS, batch_size=2), strict=True):
        expected = model(ids(text)).logits[0].softmax(-1).tolist()
        assert {entry["label"]: pytest.approx(entry["score"], abs=1e-5) for entry in scores} == {
            labels[i]: expected[i] for i in range(3)
        }


def test_fill_mask(tokenizer, tmp_path):
    model = stir(GreenformerForMaskedLM(config("lrt+linformer"))).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    fill = pipeline("fill-mask", model=str(tmp_path), device="cpu", top_k=1)
    (best,) = fill("green [MASK] grow")
    given = torch.tensor([[WORDS[word] for word in ("[CLS]", "green", "[MASK]", "grow", "[SEP]")]])
    scores = model(given).logits[0, 2].softmax(-1)
    assert best["token"] == scores.argmax()
    assert best["score"] == pytest.approx(scores.max().item(), abs=1e-5)
