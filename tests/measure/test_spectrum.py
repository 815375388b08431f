"""The spectrum is that of the weights the model attends with, over the text and nothing else."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.attention.full import Full
from greenformers.measure.spectrum import Spectrum, attention_spectrum, blocks, cumulative, records
from greenformers.model import (
    GreenformerConfig,
    GreenformerForCausalLM,
    GreenformerForSequenceClassification,
    GreenformerModel,
)
from greenformers.report.plot import png
from greenformers.report.spectrum import figure, table, write

LENGTH, VOCABULARY, PAD = 19, 53, 0
ENCODER = {
    "vocab_size": VOCABULARY, "hidden_size": 33, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 44, "max_position_embeddings": 23, "pad_token_id": PAD,
}  # fmt: skip
NETWORKS = {
    "BertForMaskedLM": ENCODER,
    "GPT2LMHeadModel": {"vocab_size": VOCABULARY, "n_embd": 33, "n_layer": 2, "n_head": 3, "n_positions": 23},
    "T5ForConditionalGeneration": {
        "vocab_size": VOCABULARY, "d_model": 33, "d_kv": 11, "d_ff": 44, "num_layers": 2, "num_heads": 3,
        "decoder_start_token_id": 0,
    },
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("one_thread")


def network(name: str, **more: object) -> PreTrainedModel:
    """Drawn at random, so that no two heads attend alike."""
    torch.manual_seed(1)
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**NETWORKS[name] | more)).eval()
    return enlarged(model)


def enlarged(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.dim() == 2 else 1)
    return model


def tokens(count: int, length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCABULARY, (count, length), generator=torch.Generator().manual_seed(2))


def by_hand(model: PreTrainedModel, ids: Tensor) -> np.ndarray:
    """One text, one layer, one head, one SVD at a time: (L, H, N)."""
    model.set_attn_implementation("eager")
    part = model.get_encoder() if model.config.is_encoder_decoder else model
    curves = []
    for text in ids:
        with torch.no_grad():
            layers = part(text[None], attention_mask=torch.ones(1, len(text)), output_attentions=True).attentions
        for layer in layers:
            for head in layer[0].double().numpy():
                sigma = np.linalg.svd(head, compute_uv=False)
                curves.append(np.cumsum(sigma) / np.sum(sigma))
    return np.mean(np.reshape(curves, (len(ids), len(layers), -1, ids.shape[1])), axis=0)


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_what_a_loop_of_svds_gives(name: str) -> None:
    ids = tokens(3)
    spectrum = attention_spectrum(network(name), [ids])
    assert spectrum.cumulative.shape == (2, 3, LENGTH)
    assert (spectrum.blocks, spectrum.length, spectrum.causal) == (3, LENGTH, name == "GPT2LMHeadModel")
    np.testing.assert_allclose(spectrum.cumulative.numpy(), by_hand(network(name), ids), atol=1e-6)
    # The heads differ, so that none could stand for another.
    assert spectrum.cumulative.flatten(0, 1).diff(dim=0).abs().amax(1).min() > 1e-3


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3), (4, 1)])
def test_batch_by_batch_is_all_at_once(sizes: tuple[int, ...]) -> None:
    ids = tokens(5)
    whole = attention_spectrum(network("BertForMaskedLM"), [ids])
    parts = attention_spectrum(network("BertForMaskedLM"), iter(ids.split(sizes)))
    assert parts.blocks == whole.blocks == 5
    torch.testing.assert_close(parts.cumulative, whole.cumulative, rtol=0, atol=1e-6)


def test_uniform_attention_has_rank_one() -> None:
    model = network("BertForMaskedLM")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name:
                parameter.zero_()
    spectrum = attention_spectrum(model, [tokens(2)])
    torch.testing.assert_close(spectrum.at(1), torch.ones(2, 3, dtype=torch.float64), rtol=0, atol=1e-5)
    assert spectrum.suggested_k(0.999) == [8, 8]
    assert spectrum.ranks(0.999).tolist() == [[1] * 3] * 2


def test_known_matrices() -> None:
    places = torch.arange(1, 8, dtype=torch.float64) / 7
    torch.testing.assert_close(cumulative(torch.eye(7)[torch.randperm(7)]), places)
    torch.testing.assert_close(cumulative(torch.diag(torch.tensor([1.0, 6, 3]))), torch.tensor([0.6, 0.9, 1]).double())
    zeros = torch.zeros(2, 4, 4)
    zeros[:, :, 2] = 0.5
    torch.testing.assert_close(cumulative(zeros), torch.ones(2, 4, dtype=torch.float64))


def test_a_token_like_the_padding_is_a_token() -> None:
    ids = tokens(2)
    ids[:, 5:9] = PAD
    spectrum = attention_spectrum(network("BertForMaskedLM"), [ids])
    np.testing.assert_allclose(spectrum.cumulative.numpy(), by_hand(network("BertForMaskedLM"), ids), atol=1e-6)


def test_the_model_is_left_as_it_was() -> None:
    model = network("BertForMaskedLM", attention_probs_dropout_prob=0.5).train()
    was = model.config._attn_implementation
    first = attention_spectrum(model, [tokens(1)])
    torch.testing.assert_close(attention_spectrum(model, [tokens(1)]).cumulative, first.cumulative)
    assert model.training
    assert model.config._attn_implementation == was == "sdpa"
    with pytest.raises(ValueError, match="at least one batch"):
        attention_spectrum(model, [])
    assert model.training
    assert model.config._attn_implementation == was


@pytest.mark.parametrize("cls", [GreenformerModel, GreenformerForCausalLM, GreenformerForSequenceClassification])
def test_our_own_models(cls: type[PreTrainedModel]) -> None:
    torch.manual_seed(1)
    model = enlarged(cls(GreenformerConfig(**ENCODER)).eval())
    ids = tokens(2)
    spectrum = attention_spectrum(model, [ids])
    assert spectrum.causal == (cls is GreenformerForCausalLM)
    assert not any(module._forward_pre_hooks for module in model.modules())

    # Attention of the identity is P.
    curves: list[Tensor] = []

    def see(full: Full, _: object, given: dict[str, Tensor]) -> None:
        eye = torch.eye(LENGTH).expand(2, 3, LENGTH, LENGTH)
        weights = torch.nn.functional.scaled_dot_product_attention(
            given["q"], given["k"], eye, is_causal=full.shape.causal
        )
        curves.append(cumulative(weights).mean(0))

    for module in model.modules():
        if isinstance(module, Full):
            module.register_forward_pre_hook(see, with_kwargs=True)
    with torch.no_grad():
        model(ids)
    torch.testing.assert_close(spectrum.cumulative, torch.stack(curves), rtol=0, atol=1e-6)


def spectrum_of(*curves: list[float]) -> Spectrum:
    """One layer a curve, of one head."""
    return Spectrum(torch.tensor(curves, dtype=torch.float64)[:, None], 1, causal=False)


def test_suggested_k_grows_with_the_share() -> None:
    spectrum = attention_spectrum(network("BertForMaskedLM"), [tokens(2)])
    shares = [0.05, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99, 1.0]
    suggested = [spectrum.suggested_k(share) for share in shares]
    for lower, higher in pairwise(suggested):
        assert all(a <= b for a, b in zip(lower, higher, strict=True))
    assert {k for layers in suggested for k in layers} <= {8, 16, LENGTH}
    assert suggested[0] == [8, 8]
    assert suggested[-1] == [LENGTH, LENGTH]
    for share in shares:
        ranks = spectrum.ranks(share)
        for layer in range(2):
            for head in range(3):
                rank = int(ranks[layer, head])
                assert spectrum.at(rank)[layer, head] >= share
                assert rank == 1 or spectrum.at(rank - 1)[layer, head] < share


def test_suggested_k_is_of_the_mean_curve() -> None:
    steep, flat = [0.9] + [0.95] * 18 + [1.0], [place / 20 for place in range(1, 21)]
    one_layer = Spectrum(torch.tensor([[steep, flat]], dtype=torch.float64), 1, causal=False)
    assert one_layer.ranks(0.9).tolist() == [[1, 18]]
    assert one_layer.suggested_k(0.7) == [16]  # the mean is 0.7 at 9
    assert spectrum_of(steep, flat).suggested_k(0.9) == [8, 20]


def tokenizer(framed: bool) -> PreTrainedTokenizerFast:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"bcdefgh"]
    backend = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if framed:
        backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")


def test_blocks_are_running_text_between_special_tokens() -> None:
    texts = ["b c d", "e f g h b", "c d"]
    assert [block.tolist() for block in blocks(texts, tokenizer(True), 5)] == [
        [[2, 4, 5, 6, 3]], [[2, 7, 8, 9, 3]], [[2, 10, 4, 5, 3]],
    ]  # fmt: skip
    assert [block.tolist() for block in blocks(texts, tokenizer(False), 4)] == [[[4, 5, 6, 7]], [[8, 9, 10, 4]]]
    assert [block.tolist() for block in blocks(["b c d"], tokenizer(True), 5)] == [[[2, 4, 5, 6, 3]]]


def test_texts_are_read_as_needed() -> None:
    def endless() -> Iterator[str]:
        while True:
            yield "b c d e"

    assert next(blocks(endless(), tokenizer(False), 8)).shape == (1, 8)


@pytest.mark.parametrize(
    ("texts", "length", "message"),
    [
        (["b c"], 5, "the text has 2 tokens; one block of length 5 takes 3"),
        ([], 5, "the text has 0 tokens"),
        (["b c"], 2, "length must be above 2, the special tokens around a text; got 2"),
    ],
)
def test_too_little_text(texts: list[str], length: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(blocks(texts, tokenizer(True), length))


def vit() -> PreTrainedModel:
    return transformers.ViTModel(
        transformers.ViTConfig(hidden_size=33, num_hidden_layers=1, num_attention_heads=3, intermediate_size=8)
    )


def fnet() -> PreTrainedModel:
    config = transformers.FNetConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, intermediate_size=8)
    return transformers.FNetModel(config)


def maximum() -> PreTrainedModel:
    options = {"k": 4, "projection": "max"}
    return GreenformerModel(GreenformerConfig(**ENCODER, attention="linformer", attention_options=options))


def roberta() -> PreTrainedModel:
    return transformers.RobertaModel(transformers.RobertaConfig(**ENCODER | {"pad_token_id": 1}))


@pytest.mark.parametrize(
    ("model", "ids", "message"),
    [
        (fnet, [tokens(1)], r"FNetModel gives no attention weights \(N, N\)"),
        (maximum, [tokens(1)], "the model cannot be run on 19 tokens: output_attentions must be False with projection"),
        (vit, [tokens(1)], "the model cannot be run on 19 tokens"),
        (lambda: network("BertForMaskedLM"), [tokens(1, 24)], "length must be at most 23, the positions of the model"),
        # Two of its positions are the padding's.
        (roberta, [tokens(1, 22)], "the model cannot be run on 22 tokens: index"),
        (lambda: network("BertForMaskedLM"), [tokens(1), tokens(1, 18)], "the length of the first, 19, got 18"),
    ],
)
def test_what_cannot_be_measured(model, ids: list[Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention_spectrum(model(), ids)


def test_weights_that_are_no_numbers() -> None:
    model = network("BertForMaskedLM")
    with torch.no_grad():
        model.get_parameter("bert.encoder.layer.1.attention.self.query.weight").fill_(torch.nan)
    with pytest.raises(ValueError, match="must be numbers, got nan"):
        attention_spectrum(model, [tokens(1)])


@pytest.mark.parametrize("index", [0, 4, -1])
def test_an_index_out_of_range(index: int) -> None:
    with pytest.raises(ValueError, match=rf"index must be in 1..3, got {index}"):
        spectrum_of([0.5, 0.8, 1]).at(index)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_out_of_range(share: float) -> None:
    for asked in (spectrum_of([0.5, 1]).suggested_k, spectrum_of([0.5, 1]).ranks):
        with pytest.raises(ValueError, match=r"share must be in \(0, 1\], got"):
            asked(share)


def test_records_number_layers_from_one() -> None:
    rows = records(
        spectrum_of([0.5, 0.8, 1], [0.7, 0.9, 1]), "mine", "texts.txt", index=2, share=0.9, about={"seed": 0}
    )
    assert [(record.setting["layer"], record.metric, record.value) for record in rows] == [
        (1, "cumulative_spectrum", 0.8), (1, "suggested_k", 3), (2, "cumulative_spectrum", 0.9), (2, "suggested_k", 3),
    ]  # fmt: skip
    assert rows[0].setting == {"layer": 1, "texts": "texts.txt", "blocks": 1, "length": 3, "index": 2, "share": 0.9}


@pytest.mark.usefixtures("drafts")
def test_the_figure_shows_every_head_and_the_values_at_the_index() -> None:
    curves = torch.rand(3, 2, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sort(-1).values
    spectrum = Spectrum(curves, 4, causal=False)
    left, right, bar = (drawn := figure(spectrum, 5, "mine")).axes
    lines = [line.get_ydata() for line in left.lines]
    for layer in range(3):
        *heads, mean = lines[3 * layer : 3 * layer + 3]
        np.testing.assert_allclose(heads, curves[layer])
        np.testing.assert_allclose(mean, curves[layer].mean(0))
    np.testing.assert_allclose(right.images[0].get_array(), curves[:, :, 4])
    assert [text.get_text() for text in right.texts] == [f"{value:.2f}" for value in curves[:, :, 4].flatten().tolist()]
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["layer 1", "layer 2", "layer 3"]
    assert bar.get_ylabel().endswith("singular value 5")
    assert png(drawn) == png(figure(spectrum, 5, "mine"))
    with pytest.raises(ValueError, match="index must be in"):
        figure(spectrum, 10, "mine")


@pytest.mark.usefixtures("drafts")
@pytest.mark.parametrize("causal", [True, False])
def test_the_page_says_what_it_shows(tmp_path: Path, causal: bool) -> None:
    spectrum = Spectrum(torch.tensor([[[0.5, 0.8, 1]], [[0.7, 0.9, 1]]], dtype=torch.float64), 4, causal)
    rows = records(spectrum, "mine", "texts.txt", index=2, share=0.9, about={})
    page = write(spectrum, rows, 2, 0.9, tmp_path / "deep" / "out").read_text()
    for text in (
        "mine: spectrum of attention",
        "first 2 of 3 singular values",
        "hold 80 to 90 % of their sum",
        "To keep 0.9 of it takes k = 3, 3,",
        "4 blocks of 3 tokens",
        "layer 1 0.800, layer 2 0.900",
    ):
        assert text in page, text
    assert ("causal" in page) == causal
    assert {path.name for path in (tmp_path / "deep" / "out").iterdir()} == {"index.html", "spectrum.png"}
    assert table(spectrum, 2, 0.9).row_count == 2
