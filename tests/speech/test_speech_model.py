"""The recogniser: sizes as published, padding without effect, losses by hand, generation, saving."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from transformers import AutoModelForSpeechSeq2Seq

from greenformers.speech.config import SpeechConfig
from greenformers.speech.front_end import shortened
from greenformers.speech.model import GreenformerForSpeechSeq2Seq

PAD, SOS, EOS, VOCABULARY, BINS = 0, 1, 2, 11, 9
CLOSE = {"atol": 1e-11, "rtol": 1e-9}
SIZES = {
    "n_fft": 16,
    "window": 16,
    "hop": 8,
    "channels": 3,
    "vocab_size": VOCABULARY,
    "hidden_size": 15,
    "num_attention_heads": 3,
    "intermediate_size": 31,
    "max_position_embeddings": 23,
    "num_hidden_layers": 2,
    "decoder_layers": 3,
    "hidden_dropout_prob": 0.0,
    "pad_token_id": PAD,
    "bos_token_id": SOS,
    "decoder_start_token_id": SOS,
    "eos_token_id": EOS,
}
VARIANTS = {
    "dense": {},
    "lrt": {"rank": 7, "input_rank": 5},
    "mixed ranks": {"rank": {"v": 3, "cross_q": 5, "up": 7}, "input_rank": 2},
    "linformer": {"attention": "linformer", "attention_options": {"k": 7}},
    "linformer twice": {
        "attention": "linformer",
        "attention_options": {"k": 7, "sharing": "layerwise"},
        "cross_attention": "linformer",
        "cross_attention_options": {"k": 5},
    },
    "linear cross": {"cross_attention": "linear_transformer"},
    "performer cross": {"cross_attention": "performer"},
    "linear decoder": {"decoder_attention": "linear_transformer"},
    "pre-norm": {"residual": "pre"},
    "tied": {"tie_word_embeddings": True},
    "tied, narrow": {"tie_word_embeddings": True, "embedding_size": 13},
    "learned positions": {"position": "learned"},
}
GREEDY = {"do_sample": False}
each_variant = pytest.mark.parametrize("name", VARIANTS)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def network(name="dense", dtype=torch.float64, **options):
    """Every parameter drawn anew, so that none hides behind a 0 or a 1."""
    model = GreenformerForSpeechSeq2Seq(SpeechConfig(**SIZES | VARIANTS[name] | options)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def sound(*lengths, dtype=torch.float64, longest=None):
    """Noise, in the padding too, and its mask."""
    longest = longest or max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), longest, BINS, dtype=dtype), mask


def texts(*lengths):
    """Labels with the end, -100 behind it."""
    labels = torch.full((len(lengths), max(lengths) + 1), -100)
    for row, length in enumerate(lengths):
        labels[row, :length] = torch.randint(3, VOCABULARY, (length,))
        labels[row, length] = EOS
    return labels


def millions(**options):
    marks = {name: SIZES[name] for name in SIZES if name.endswith("token_id")}
    with torch.device("meta"):
        model = GreenformerForSpeechSeq2Seq(SpeechConfig(vocab_size=4233, **marks, **options))
    return model.num_parameters() / 1e6


@pytest.mark.parametrize(("rank", "published"), [(100, 12.7), (75, 10.7), (50, 8.7)])
def test_sizes_of_lrt(rank, published):
    assert millions(rank=rank, input_rank=rank) == pytest.approx(published, rel=0.05)


@pytest.mark.parametrize(("width", "inner", "published"), [(512, 1152, 25.1), (320, 1024, 12.7), (256, 768, 8.7)])
def test_sizes_of_transformers(width, inner, published):
    assert millions(hidden_size=width, intermediate_size=inner) == pytest.approx(published, rel=0.05)


@each_variant
def test_padding_changes_nothing(name):
    model = network(name)
    lengths, written = (37, 22, 15, 5), (6, 4, 2, 1)
    x, mask = sound(*lengths, longest=39)
    labels = texts(*written)
    together = model(x, mask, labels=labels)
    assert together.logits.shape == (4, 7, VOCABULARY)
    assert together.encoder_last_hidden_state.shape == (4, 9, 15)
    total = 0
    for row, (frames, length) in enumerate(zip(lengths, written, strict=True)):
        alone = model(x[row : row + 1, :frames], labels=labels[row : row + 1, : length + 1])
        assert_close(together.logits[row, : length + 1], alone.logits[0], **CLOSE)
        memory = together.encoder_last_hidden_state[row, : frames // 4]
        assert_close(memory, alone.encoder_last_hidden_state[0], **CLOSE)
        total += alone.loss * (length + 1)
    assert_close(together.loss, total / (sum(written) + 4), **CLOSE)
    same = model(x, mask.long(), labels=labels)
    assert_close(same.logits, together.logits, atol=0, rtol=0)


def test_padding_changes_no_gradient():
    model = network(ctc_weight=0.3).train()
    x, mask = sound(22, 15, 13)
    labels, leaves = texts(4, 3, 2), [p for n, p in model.named_parameters()]
    model = model.float()  # CTC is computed in it
    together = torch.autograd.grad(model(x.float(), mask, labels=labels).loss, leaves)
    alone = sum(
        model(x[row : row + 1, :frames].float(), labels=labels[row : row + 1, :count], num_items_in_batch=12).loss
        for row, (frames, count) in enumerate(((22, 5), (15, 4), (13, 3)))
    )
    assert_close(together, torch.autograd.grad(alone, leaves), atol=1e-5, rtol=1e-4)


def by_hand(model, x, mask, labels):
    """CTC of one utterance after the other, cross-entropy of one label after the other."""
    attention, ctc = 0.0, 0.0
    for row in range(len(x)):
        asked = labels[row][labels[row] != -100]
        utterance = x[row : row + 1, mask[row]]
        logits = model(utterance, decoder_input_ids=torch.cat([torch.tensor([SOS]), asked[:-1]])[None]).logits[0]
        attention = attention - sum(logits[i].log_softmax(0)[token] for i, token in enumerate(asked))
        memory = model.encoder(utterance).last_hidden_state[0]
        scores = model.ctc(memory).log_softmax(1)
        spoken = asked[asked != EOS]
        loss = F.ctc_loss(scores[:, None], spoken[None], [len(memory)], [len(spoken)], blank=PAD, reduction="sum")
        ctc = ctc + (loss if loss.isfinite() else 0.0)
    count = (labels != -100).sum()
    return attention / count, ctc / count


@pytest.mark.parametrize("options", [{}, {"sparse_prediction": True}], ids=["", "sparse"])
@pytest.mark.parametrize("share", [0.25, 0.8])
def test_ctc_by_hand(share, options):
    model = network(dtype=torch.float32, ctc_weight=share, **options)
    x, mask = sound(37, 22, 30, dtype=torch.float32)
    labels = texts(5, 3, 4)
    attention, ctc = by_hand(model, x, mask, labels)
    assert_close(model(x, mask, labels=labels).loss, attention, atol=1e-5, rtol=1e-5)
    model.train()
    loss = model(x, mask, labels=labels).loss
    assert_close(loss, (1 - share) * attention + share * ctc, atol=1e-5, rtol=1e-5)
    assert_close(model(x, mask, labels=labels, num_items_in_batch=30).loss, loss * 15 / 30, atol=1e-5, rtol=1e-5)


def test_ctc_without_a_mask():
    model = network(dtype=torch.float32, ctc_weight=0.5).train()
    x, mask = sound(29, 29, dtype=torch.float32)
    labels = texts(3, 5)
    assert_close(model(x, labels=labels).loss, model(x, mask, labels=labels).loss)
    assert_close(model(x, mask.long(), labels=labels).loss, model(x, mask, labels=labels).loss)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_ctc_in_other_types(dtype):
    model = network(dtype=dtype, ctc_weight=0.5).train()
    x, mask = sound(29, 21, dtype=dtype)
    labels = texts(3, 5)
    loss = model(x, mask, labels=labels).loss
    loss.backward()
    expected = model.float()(x.float(), mask, labels=labels).loss
    assert_close(loss.float(), expected, atol=0.1, rtol=0.1)


def test_too_short_for_ctc():
    """4 and 1 positions for 6 characters; and for none at all."""
    model = network(dtype=torch.float32, ctc_weight=0.5).train()
    x, mask = sound(16, 5, 12, dtype=torch.float32, longest=19)
    labels = texts(6, 6, 0)
    loss = model(x, mask, labels=labels).loss
    attention, ctc = by_hand(model, x, mask, labels)
    assert_close(loss, (attention + ctc) / 2, atol=1e-5, rtol=1e-5)
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    nothing = model(x, mask, labels=torch.full((3, 4), -100)).loss
    assert nothing.isfinite()


@each_variant
def test_every_parameter_learns(name):
    model = network(name, dtype=torch.float32, ctc_weight=0.3).train()
    x, mask = sound(91, 60, dtype=torch.float32)
    model(x, mask, labels=texts(15, 12)).loss.backward()
    still = {key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    # Softmax does not see what is added to every key alike.
    assert {key for key in still if not key.endswith("projections.k.bias")} == set()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_labels_of_minus_100():
    model = network()
    x, mask = sound(37, 22)
    labels = texts(6, 4)
    out = model(x, mask, labels=labels)
    moved = model.prepare_decoder_input_ids_from_labels(labels)
    assert moved[:, 0].tolist() == [SOS, SOS]
    assert moved[1].tolist() == [SOS, *labels[1, :5].tolist(), PAD]
    asked = labels != -100
    assert_close(out.loss, F.cross_entropy(out.logits[asked], labels[asked]), **CLOSE)
    sparse = network(sparse_prediction=True)
    sparse.load_state_dict(model.state_dict())
    output = sparse(x, mask, labels=labels)
    assert_close(output.logits, out.logits[asked], **CLOSE)
    assert_close(output.loss, out.loss, **CLOSE)
    assert model(x, mask, labels=torch.full_like(labels, -100)).loss == 0


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, GREEDY) for name in VARIANTS]
    + [(name, {"num_beams": 2}) for name in ("dense", "linformer twice", "performer cross", "linear decoder")],
)
def test_generation(name, way):
    model = network(name)
    x, mask = sound(37, 22, 15)
    options = {"max_new_tokens": 4, "eos_token_id": None} | way
    cached, plain = (
        model.generate(input_features=x, attention_mask=mask, use_cache=cache, **options) for cache in (True, False)
    )
    assert cached.shape == (3, 5)
    assert torch.equal(cached, plain)
    alone = model.generate(input_features=x[1:2, :22], **options)
    assert torch.equal(alone[0], cached[1])
    if "do_sample" in way:
        expected = torch.full((3, 1), SOS)
        for _ in range(4):
            logits = model(x, mask, decoder_input_ids=expected).logits
            expected = torch.cat([expected, logits[:, -1:].argmax(-1)], 1)
        assert torch.equal(cached, expected)


def test_an_encoders_output_stands_for_the_sound():
    model = network()
    x, mask = sound(37, 22)
    labels = texts(6, 4)
    memory = model.encoder(x, mask)
    expected = model(x, mask, labels=labels)
    for given in (memory, memory.to_tuple()):
        out = model(attention_mask=mask, labels=labels, encoder_outputs=given)
        assert_close(out.logits, expected.logits, atol=0, rtol=0)
    out = model(x, mask, labels=labels, output_hidden_states=True)
    assert (len(out.encoder_hidden_states), len(out.decoder_hidden_states)) == (3, 4)
    assert out.encoder_hidden_states[0].shape == (2, 9, 15)
    loss, logits, _ = model(x, mask, labels=labels, return_dict=False)
    assert_close((loss, logits), (expected.loss, expected.logits), atol=0, rtol=0)


@pytest.mark.parametrize("reader", [GreenformerForSpeechSeq2Seq, AutoModelForSpeechSeq2Seq], ids=["ours", "auto"])
@pytest.mark.parametrize("name", ["dense", "lrt", "linformer twice", "performer cross", "tied, narrow"])
def test_saved_and_loaded(name, reader, tmp_path):
    model = network(name, dtype=torch.float32, ctc_weight=0.2)
    model.save_pretrained(tmp_path)
    loaded, report = reader.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert type(loaded) is GreenformerForSpeechSeq2Seq
    assert not loaded.training
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert loaded.config.spectrogram() == model.config.spectrogram()
    assert loaded.config.ctc_weight == 0.2
    x, mask = sound(37, 22, dtype=torch.float32)
    ids = torch.tensor([[SOS, 5, 7], [SOS, 3, 4]])
    assert torch.equal(loaded(x, mask, ids).logits, model(x, mask, ids).logits)


def test_tied_words():
    model = network("tied")
    assert model.score.weight is model.decoder.embedding.word.weight
    untied = network()
    assert untied.score.weight is not untied.decoder.embedding.word.weight
    assert untied.num_parameters() - model.num_parameters() == VOCABULARY * 15
    narrow = network("tied, narrow")
    assert narrow.score.weight is narrow.decoder.embedding.word.weight
    assert narrow.score.weight.shape == (VOCABULARY, 13)


def test_tied_words_are_once_in_the_file_and_one_again(tmp_path):
    network("tied", dtype=torch.float32).save_pretrained(tmp_path)
    loaded = AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path)
    assert loaded.score.weight is loaded.decoder.embedding.word.weight


def test_ctc_has_a_map_only_where_it_is_asked_for():
    assert not hasattr(network(), "ctc")
    assert network(ctc_weight=0.1).ctc.weight.shape == (VOCABULARY, 15)


def test_what_reads_the_input():
    model = network()
    first = model.encoder.embedding.front_end.convolutions[0]
    assert model.encoder.get_input_embeddings() is first
    other = torch.nn.Conv2d(1, 3, 3)
    model.encoder.set_input_embeddings(other)
    assert model.encoder.embedding.front_end.convolutions[0] is other
    assert model.get_output_embeddings() is model.score


def test_more_characters():
    model = network("tied")
    x, mask = sound(37, 22)
    ids = torch.tensor([[SOS, 5, 7], [SOS, 3, 4]])
    before = model(x, mask, ids).logits
    model.resize_token_embeddings(13)
    assert model.score.weight is model.decoder.embedding.word.weight
    assert model.config.vocab_size == 13
    assert_close(model(x, mask, ids).logits[..., :VOCABULARY], before, **CLOSE)


@pytest.mark.parametrize("count", [13, 9])
def test_more_and_fewer_characters_with_ctc(count):
    model = network(dtype=torch.float32, ctc_weight=0.4).train()
    x, mask = sound(37, 22, dtype=torch.float32)
    encoded = model.encoder(x, mask).last_hidden_state
    before = model.ctc(encoded)
    model.resize_token_embeddings(count)
    same = min(count, VOCABULARY)
    after = model.ctc(encoded)
    assert after.shape[2] == count
    assert_close(after[..., :same], before[..., :same])
    labels = torch.tensor([[3, count - 1, EOS], [count - 1, 4, EOS]])
    model(x, mask, labels=labels).loss.backward()
    assert model.ctc.weight.grad[count - 1].any()


def test_gradient_checkpointing_changes_nothing():
    model = network().train()
    x, mask = sound(37, 22)
    labels, leaves = texts(6, 4), list(model.parameters())
    expected = torch.autograd.grad(model(x, mask, labels=labels).loss, leaves)
    model.activation_checkpointing_enable()
    assert_close(torch.autograd.grad(model(x, mask, labels=labels).loss, leaves), expected, **CLOSE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ctc_weight": 1.0}, r"ctc_weight must be in \[0, 1\), got 1.0"),
        ({"ctc_weight": -0.1}, r"ctc_weight must be in \[0, 1\), got -0.1"),
        ({"ctc_weight": float("nan")}, r"ctc_weight must be in \[0, 1\), got nan"),
        ({"hop": 17}, r"hop must be in 1\.\.16 \(window\), got 17"),
        ({"channels": 0}, "channels must be at least 1, got 0"),
        ({"input_rank": 16}, r"rank must be in 1\.\.12"),
        ({"decoder_layers": None}, "an encoder-decoder needs decoder_layers, got None"),
        ({"pad_token_id": None}, "an encoder-decoder needs pad_token_id, got None"),
        ({"decoder_start_token_id": None}, "an encoder-decoder needs decoder_start_token_id, got None"),
        ({"n_fft": 4, "window": 4, "hop": 2}, "bins must be at least 4, got 3"),
        ({"attention": "nothing"}, "attention must be one of"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        GreenformerForSpeechSeq2Seq(SpeechConfig(**SIZES | options))


def test_misspelt_options():
    with pytest.raises(TypeError, match="did you mean"):
        SpeechConfig(**SIZES, ctc_wieght=0.1)


def test_wrong_inputs():
    model = network()
    x, mask = sound(37, 22)
    with pytest.raises(ValueError, match="decoder_input_ids or labels must be given, got neither"):
        model(x, mask)
    with pytest.raises(ValueError, match=r"attention_mask must be \(2, 37\), got \(2, 36\)"):
        model(x, mask[:, 1:], labels=texts(3, 3))
    with pytest.raises(ValueError, match="must have 9 frequencies, got 8"):
        model(x[..., 1:], mask, labels=texts(3, 3))
    with pytest.raises(ValueError, match="at least 4 frames, got 3"):
        model(x[:, :3], labels=texts(1, 1))
    with pytest.raises(ValueError, match="the mask has a gap"):
        model(x, mask.flip(1), labels=texts(3, 3))
    with pytest.raises(ValueError, match="encoder_attention_mask must be"):
        model(attention_mask=mask[:, :20], labels=texts(3, 3), encoder_outputs=model.encoder(x, mask))


def test_encoder_alone():
    model = network()
    x, mask = sound(37, 22)
    out = model.encoder(x, mask)
    positions = shortened(mask)
    assert out.last_hidden_state.shape == (*positions.shape, 15)
    assert out.last_hidden_state.isfinite().all()


def test_weights_of_the_attention():
    model, (x, mask) = network(), sound(37, 22)
    labels = texts(3, 3)
    out = model(x, mask, labels=labels, output_attentions=True)
    assert {weights.shape[1:] for weights in out.encoder_attentions} == {(model.config.num_attention_heads, 9, 9)}
    assert out.cross_attentions[0].shape[2:] == (4, 9)
    torch.testing.assert_close(out.logits, model(x, mask, labels=labels).logits)
