"""Recognisers with CTC, changed after training: what CTC reads stays, reloads, and has its share of a search."""

import pytest
import torch

from greenformers import save
from greenformers.changes import Bits, Given, Int8, Layers, LowRank
from greenformers.speech.config import SpeechConfig
from greenformers.speech.model import GreenformerForSpeechSeq2Seq
from greenformers.speech.search import Search, beam_search

SIZES = {
    "n_fft": 16, "window": 16, "hop": 8, "channels": 2, "vocab_size": 11, "hidden_size": 32, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 19, "num_hidden_layers": 2, "decoder_layers": 2,
    "hidden_dropout_prob": 0.0, "pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 2,
    "ctc_weight": 0.3,
}  # fmt: skip
CHANGES = [LowRank(keep=0.5), Layers(keep=1), Int8(), Bits(bits=4)]
SEARCH = Search(width=2)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name())
def test_ctc_after_a_change(change, tmp_path):
    torch.manual_seed(0)
    model = GreenformerForSpeechSeq2Seq(SpeechConfig(**SIZES)).eval()
    x, labels = torch.randn(3, 43, 9), torch.randint(3, 11, (3, 5))
    before = [model.get_submodule(name).weight.clone() for name in ("ctc", "score")]
    batch = {"input_features": x, "labels": labels}
    change.apply(model, Given(calibration=[batch], example=batch))
    # Weights of few bits are those of the layer of CTC too, as of that of the decoder.
    assert type(model.ctc) is type(model.score)
    if type(model.ctc) is torch.nn.Linear:
        assert torch.equal(model.ctc.weight, before[0])
        assert torch.equal(model.score.weight, before[1])
        model.train()(**batch).loss.backward()
        assert model.ctc.weight.grad.any()
        model.eval()
    beams = beam_search(model, x, search=SEARCH)
    assert beams != beam_search(model, x, search=Search(width=2, ctc_weight=0.0))
    save(model, tmp_path)
    reloaded = GreenformerForSpeechSeq2Seq.from_pretrained(tmp_path)
    assert beam_search(reloaded, x, search=SEARCH) == beams
