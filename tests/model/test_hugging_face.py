"""Rule 7 of the house: Trainer, pipeline, checkpointing, mixed precision and torch.compile work."""

import subprocess
import sys

import pytest
import torch
from networks import FOUR, VOCABULARY, config, layer, stir
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline

import greenformers
from greenformers.model import (
    GreenformerForMaskedLM,
    GreenformerForSequenceClassification,
    GreenformerModel,
)

B, N = 3, 13


def tokens():
    return torch.randint(VOCABULARY, (B, N))


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", FOUR)
def test_the_trainer_trains(name, bf16, tmp_path):
    torch.manual_seed(0)
    network = GreenformerForSequenceClassification(config(name, num_labels=2, initializer_range=0.2))
    rows = [
        {"input_ids": ids, "labels": torch.tensor(i % 2)} for i, ids in enumerate(torch.randint(VOCABULARY, (8, N)))
    ]
    arguments = TrainingArguments(
        tmp_path, max_steps=25, learning_rate=5e-3, per_device_train_batch_size=8, logging_steps=1, bf16=bf16,
        use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(network, arguments, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("name", ["transformer", "lrt+linformer"])
def test_accumulated_gradients_are_those_of_the_whole_batch(name, tmp_path):
    """A head that claimed to count items itself would get gradients `steps` times too large."""
    rows = [
        {"input_ids": ids, "labels": torch.tensor(i % 2)} for i, ids in enumerate(torch.randint(VOCABULARY, (8, N)))
    ]
    weights = []
    for batch, steps in ((8, 1), (2, 4)):
        torch.manual_seed(0)
        network = GreenformerForSequenceClassification(config(name, num_labels=2, initializer_range=0.2))
        arguments = TrainingArguments(
            tmp_path, max_steps=1, per_device_train_batch_size=batch, gradient_accumulation_steps=steps, optim="sgd",
            learning_rate=1.0, lr_scheduler_type="constant", max_grad_norm=0.0, use_cpu=True, report_to="none",
            save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        Trainer(network, arguments, train_dataset=rows).train()
        weights.append(network.classifier.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [GreenformerModel, GreenformerForMaskedLM, GreenformerForSequenceClassification])
def test_a_misspelt_mask_is_not_ignored(kind):
    with pytest.raises(TypeError, match="attention_maks"):
        kind(config())(tokens(), attention_maks=torch.ones(B, N))


def tokenizer():
    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "a", "small", "green", "model"])}
    raw = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        model_max_length=23,
        model_input_names=["input_ids", "attention_mask"],
    )


@pytest.mark.parametrize("name", FOUR)
def test_pipelines_work(name):
    words = tokenizer()
    texts = ["a small green model", "a model"]
    network = stir(GreenformerModel(config(name))).eval()
    features = pipeline("feature-extraction", model=network, tokenizer=words, device="cpu", batch_size=2)(texts)
    expected = network(**words(texts[1], return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(torch.tensor(features[1])[:, : expected.shape[1]], expected, rtol=1e-4, atol=1e-4)

    labels = {0: "black", 1: "green"}
    classifier = GreenformerForSequenceClassification(config(name, id2label=labels)).eval()
    (answer,) = pipeline("text-classification", model=classifier, tokenizer=words, device="cpu")(texts[0])
    assert answer["label"] in labels.values()


@pytest.mark.parametrize("name", FOUR)
def test_gradient_checkpointing_changes_no_gradient(name):
    network, ids = stir(GreenformerForMaskedLM(config(name))).train(), tokens()
    gradients = []
    for checkpointing in (False, True):
        network.zero_grad()
        if checkpointing:
            network.activation_checkpointing_enable({"use_reentrant": False})
            assert network.encoder.layers[0].gradient_checkpointing
        network(ids, labels=ids).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in network.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_the_vocabulary_can_grow():
    network = GreenformerForMaskedLM(config())
    network.resize_token_embeddings(VOCABULARY + 4)
    ids = torch.full((1, 2), VOCABULARY + 3)
    assert network(ids).logits.shape == (1, 2, VOCABULARY + 4)
    assert network.decoder.weight is network.encoder.embedding.word.weight
    assert network.get_input_embeddings() is network.encoder.embedding.word


@pytest.mark.parametrize("name", FOUR)
def test_a_layer_compiles_to_one_graph(name):
    torch.compiler.reset()
    network = layer(name, torch.float32)
    compiled = torch.compile(network, fullgraph=True, dynamic=False, backend="aot_eager")
    x, mask = torch.randn(B, N, 15), torch.arange(N) < torch.tensor([13, 7, 4])[:, None]
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, mask), network(x, mask), rtol=1e-5, atol=1e-5)
    gradients = []
    for call in (network, compiled):
        out = call(x, mask)
        gradients.append(torch.autograd.grad(out.square().sum(), list(network.parameters())))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    torch.compiler.reset()


@pytest.mark.parametrize("name", FOUR)
def test_bfloat16_and_autocast(name):
    network, ids = stir(GreenformerForMaskedLM(config(name))).eval(), tokens()
    expected = network(ids).logits
    scale = expected.std()
    for grad in (False, True):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(network(ids).logits.float() / scale, expected / scale, rtol=0.1, atol=0.1)
    half = network.to(torch.bfloat16)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            out = half(ids).logits
        assert out.dtype == torch.bfloat16
        torch.testing.assert_close(out.float() / scale, expected / scale, rtol=0.2, atol=0.2)


def test_importing_the_package_costs_nothing():
    script = "import sys, greenformers; print('torch' in sys.modules, 'transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["False", "False"]


def test_public_names_resolve():
    for name in greenformers.__all__:
        assert getattr(greenformers, name) is not None
    assert set(greenformers.__all__) <= set(dir(greenformers))
    with pytest.raises(AttributeError, match="has no attribute 'Greenformer'; it has Attention"):
        _ = greenformers.Greenformer
