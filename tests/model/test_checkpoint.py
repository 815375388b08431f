"""What a checkpoint lacks, holds besides, or holds once for several layers; test_saving.py has whole ones."""

import json

import pytest
import torch
from networks import VOCABULARY, config, stir
from transformers import AutoModel, AutoModelForSequenceClassification, logging

from greenformers.model import GreenformerForMaskedLM, GreenformerForSequenceClassification, GreenformerModel


def make(kind, name="transformer", **options):
    return stir(kind(config(name, **options))).eval()


def tokens():
    return torch.randint(VOCABULARY, (3, 13))


@pytest.mark.parametrize("options", [{"residual": "pre"}, {"position": "none"}, {"input_features": 2}])
def test_other_slots_come_back(options, tmp_path):
    model = make(GreenformerForSequenceClassification, "lrt+linformer", **options)
    model.save_pretrained(tmp_path)
    again, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    torch.testing.assert_close(again.state_dict(), model.state_dict(), atol=0, rtol=0)


def test_the_configuration_names_the_slots(tmp_path):
    make(GreenformerModel, "lrt+linformer").save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert (saved["model_type"], saved["architectures"]) == ("greenformer", ["GreenformerModel"])
    assert (saved["attention"], saved["attention_options"], saved["rank"]) == ("linformer", {"k": 11}, 7)


def test_encoder_of_a_model_with_a_head_by_the_automatic_class(tmp_path):
    model, ids = make(GreenformerForMaskedLM, "lrt layerwise"), tokens()
    model.save_pretrained(tmp_path)
    again, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    expected = model.encoder(ids).last_hidden_state
    torch.testing.assert_close(again(ids).last_hidden_state, expected, atol=0, rtol=0)


def test_a_reloaded_shared_matrix_is_one_tensor_and_trained_as_one(tmp_path):
    make(GreenformerForMaskedLM, "layerwise").save_pretrained(tmp_path)
    model, ids = GreenformerForMaskedLM.from_pretrained(tmp_path), tokens()
    first, second = (layer.attention.mechanism.E for layer in model.encoder.layers)
    assert first.data_ptr() == second.data_ptr()
    before = first.detach().clone()
    model(ids, labels=ids).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not torch.equal(first, before)
    torch.testing.assert_close(second, first, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("name", "lacking", "std"),
    [
        ("lrt", "layers.1.attention.projections.q.encoder.weight", 15**-0.5),
        ("lrt", "layers.1.attention.projections.q.decoder.weight", 15**-0.5 * (15 / 7) ** 0.5),
        ("linformer", "layers.1.attention.mechanism.E", None),
        ("transformer", "layers.1.feed_forward.up.weight", 15**-0.5),
    ],
)
def test_what_a_checkpoint_lacks_is_reported_and_drawn_anew(name, lacking, std, tmp_path):
    model = make(GreenformerModel, name)
    saved = {key: x for key, x in model.state_dict().items() if key != lacking}
    model.save_pretrained(tmp_path, state_dict=saved)
    again, report = GreenformerModel.from_pretrained(tmp_path, output_loading_info=True)
    assert report["missing_keys"] == {lacking}
    state = again.state_dict()
    torch.testing.assert_close({key: state[key] for key in saved}, saved, atol=0, rtol=0)
    if std is None:  # not drawn: always the same
        torch.testing.assert_close(state[lacking], GreenformerModel(config(name)).state_dict()[lacking], atol=0, rtol=0)
    else:
        torch.testing.assert_close(state[lacking].std(), torch.tensor(std), atol=0, rtol=0.25)


def test_what_a_checkpoint_lacks_is_logged(tmp_path, caplog):
    logging.set_verbosity_warning()  # our own commands silence it, for the whole process
    make(GreenformerModel).save_pretrained(tmp_path)
    GreenformerForSequenceClassification.from_pretrained(tmp_path)
    assert "classifier.weight" in caplog.text
    assert "MISSING" in caplog.text


def test_a_checkpoint_of_other_sizes_is_an_error(tmp_path):
    make(GreenformerModel).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="size"):
        GreenformerModel.from_pretrained(tmp_path, intermediate_size=29)


def test_another_precision(tmp_path):
    model, ids = make(GreenformerForMaskedLM, "lrt layerwise"), tokens()
    model.save_pretrained(tmp_path)
    again = GreenformerForMaskedLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert {parameter.dtype for parameter in again.parameters()} == {torch.float64}
    torch.testing.assert_close(again(ids).logits.float(), model(ids).logits, atol=1e-4, rtol=1e-4)
