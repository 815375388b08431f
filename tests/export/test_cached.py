"""Files of decoders with a cache: a text in pieces, other texts in the middle of it, and models that keep none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertLMHeadModel,
    GPT2LMHeadModel,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
)
from zoo import network

import greenformers
from greenformers import GreenformerConfig, GreenformerForCausalLM
from greenformers._torch import has_vnni
from greenformers.changes import Int8, LowRank
from greenformers.changes._int8_linear import Int8Linear
from greenformers.export import measure
from greenformers.export import write as writing
from greenformers.export.cached import CachedCall, CachedNetwork, Continued, TorchDecoder, cached_network
from greenformers.export.compare import Comparison
from greenformers.export.measure import latencies
from greenformers.export.network import Network, Traceable, examples, trace
from greenformers.export.write import FORMATS, Checked, reader, write

FORMS = ["openvino", "onnx"]
INT8 = onnx.TensorProto.INT8


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Path, Checked]:
    """A decoder with rotary positions and fewer heads of keys than of queries, in int8 and of low rank."""
    if not has_vnni():
        pytest.skip("without VNNI the runtimes' int8 sums overflow, and the files are refused")
    model, folder = network("llama", num_hidden_layers=1), tmp_path_factory.mktemp("llama")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() == 2 else 1)
    greenformers.compress(model, [LowRank(keep=0.5), Int8()])
    texts = [{"input_ids": torch.randint(3, 53, (2, 4 + at))} for at in range(20)]
    return Network(model), folder, write(model, folder, FORMS, calibration=texts, length=16)


def test_names_and_shapes(exported: tuple[Network, Path, Checked]) -> None:
    decoder, folder, checked = exported
    assert (checked.cached, checked.whole) == (True, "")
    session = onnxruntime.InferenceSession(folder / FORMATS["onnx"], providers=["CPUExecutionProvider"])
    assert {given.name: given.shape for given in session.get_inputs()} == {
        "input_ids": ["batch", "length"], "attention_mask": ["batch", "total"],
        "past_key_values.0.key": ["batch", 2, "past", 8], "past_key_values.0.value": ["batch", 2, "past", 8],
    }  # fmt: skip
    assert [given.name for given in session.get_outputs()] == ["logits", "present.0.key", "present.0.value"]
    # Weights are stored as integers.
    numbers = sum(layer.quantised.numel() for layer in decoder.model.modules() if isinstance(layer, Int8Linear))
    stored = [held for held in onnx.load(folder / FORMATS["onnx"]).graph.initializer if held.data_type == INT8]
    assert sum(torch.Size(held.dims).numel() for held in stored) >= numbers > 0


@pytest.mark.parametrize("form", FORMS)
def test_a_text_in_pieces(exported: tuple[Network, Path, Checked], form: str) -> None:
    decoder, folder, checked = exported
    call = reader(form, folder, decoder.inputs, exact=True)
    assert isinstance(call, CachedCall)
    ids, mask = decoder.batch(3, 12, "left")
    whole = CachedCall(call.decoder, pieces=False)(ids, mask)
    steps = Continued(call.decoder, ids[:1], 4)
    single = torch.cat([steps() for _ in range(8)], 1)
    allowed = checked.allowed[form] * whole.abs().max()
    assert (single - whole[:1, 4:]).abs().max() <= allowed
    assert (call(ids, mask) - whole)[mask.bool()].abs().max() <= allowed
    # The pieces before count: without them it is another text.
    alone = CachedCall(call.decoder, pieces=False)(ids[:, 6:], mask[:, 6:])
    assert (alone - whole[:, 6:])[:1].abs().max() > 2 * allowed


def test_positions_that_count_from_behind_the_padding_do_so_with_and_without_a_cache() -> None:
    sizes = {"vocab_size": 53, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    further = {"intermediate_size": 16, "max_position_embeddings": 40, "pad_token_id": 1, "type_vocab_size": 1}
    model = RobertaForCausalLM(RobertaConfig(is_decoder=True, **sizes, **further)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10 if parameter.dim() == 2 else 1)
    decoder = Network(model)
    ids, mask = decoder.batch(3, 9, "right")
    with torch.inference_mode():
        right = model(input_ids=ids, attention_mask=mask).logits[mask.bool()]
        assert decoder.first == 2
        for call in (decoder, CachedCall(TorchDecoder(decoder), pieces=True)):
            torch.testing.assert_close(call(ids, mask)[mask.bool()], right, atol=1e-4, rtol=1e-4)


def test_openvino_continues_rows_as_beams_choose_them(exported: tuple[Network, Path, Checked]) -> None:
    decoder, folder, checked = exported
    call: Any = reader("openvino", folder, decoder.inputs, exact=True)
    ids, mask = decoder.batch(2, 9)
    swapped = torch.cat([ids.flip(0)[:, :8], ids[:, 8:]], 1)
    right = CachedCall(call.decoder, pieces=False)(swapped, mask)[:, -1]
    call.decoder.reset(2)
    call.decoder.step(ids[:, :8], mask[:, :8])
    given = {"input_ids": ids[:, 8:].numpy().copy(), "attention_mask": mask.numpy()}
    output = call.decoder.request.infer(given | {"beam_idx": np.array([1, 0], dtype=np.int32)})
    assert (torch.from_numpy(output[0][:, -1]) - right).abs().max() <= checked.allowed["openvino"] * right.abs().max()


def test_latencies_of_the_next_token(exported: tuple[Network, Path, Checked], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, folder, _ = exported
    monkeypatch.setattr(measure, "PAUSE", 0.0)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: decoder)
    records = latencies(decoder.model, folder, FORMS, [5, 30], size=2, repeats=2, about={})  # type: ignore[arg-type]
    names = ["torch", "OpenVINO", "ONNX Runtime"]
    assert [(record.variant, record.setting) for record in records if record.metric == "latency_next_token"] == [
        (name, {"length": length, "batch": 2}) for length in (5, 30) for name in names
    ]
    assert all(record.value > 0 for record in records)


def as_cached(model: Any) -> CachedNetwork | str:
    decoder = Network(model)
    return cached_network(decoder, Comparison(decoder, examples(decoder, 16)))


class Forgetful(GPT2LMHeadModel):
    """One that takes a cache and does not read it."""

    def forward(
        self, input_ids: Any, attention_mask: Any, past_key_values: Any = None, use_cache: Any = None, **more: Any
    ) -> Any:
        return super().forward(input_ids, attention_mask=attention_mask[:, -input_ids.shape[1] :], **more)


def test_models_of_our_own_keep_one_too() -> None:
    torch.manual_seed(0)
    config = GreenformerConfig(vocab_size=53, hidden_size=32, num_attention_heads=2, num_hidden_layers=1)
    cached = as_cached(GreenformerForCausalLM(config).eval())
    assert isinstance(cached, CachedNetwork)
    program = trace(cached, cached.batch(2, 8)).module()
    tensors = cached.batch(3, 5)
    with torch.no_grad():
        for got, right in zip(program(*tensors), cached(*tensors), strict=True):
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)


def test_one_that_is_told_of_the_cache_among_further_options_keeps_it_too() -> None:
    config = GraniteMoeHybridConfig(
        vocab_size=53, hidden_size=32, num_attention_heads=2, num_key_value_heads=2, intermediate_size=44,
        num_hidden_layers=1, num_local_experts=0, shared_intermediate_size=44, layer_types=["attention"],
        mamba_n_heads=4,
    )  # fmt: skip
    assert isinstance(as_cached(GraniteMoeHybridForCausalLM(config).eval()), CachedNetwork)


def reasons() -> Iterator[tuple[Any, str]]:
    forgetful = Forgetful(network("gpt2", n_layer=1).config).eval()
    yield forgetful, "the model with a cache differs from the model by"
    mamba = MambaConfig(vocab_size=53, hidden_size=32, num_hidden_layers=1, state_size=4)
    yield MambaForCausalLM(mamba).eval(), "it takes no past_key_values"
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 44, "num_hidden_layers": 1}
    yield BertLMHeadModel(BertConfig(vocab_size=53, is_decoder=True, **sizes)).eval(), "it takes token_type_ids too"
    config = {"vocab_size": 53, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    states = GreenformerForCausalLM(GreenformerConfig(attention="linear_transformer", **config)).eval()  # type: ignore[arg-type]
    yield states, "its cache holds a StateLayer in place of keys and values"


def test_reasons_for_whole_texts() -> None:
    assert as_cached(network("bert", num_hidden_layers=1)) == ""
    for model, reason in reasons():
        said = as_cached(model)
        assert isinstance(said, str)
        assert said.startswith(reason)


@pytest.mark.slow
def test_without_a_cache_where_it_cannot_be_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(traced: Traceable, example: tuple[Tensor, ...]) -> Any:
        if isinstance(traced, CachedNetwork):
            raise ValueError("the model cannot be traced: no")
        return trace(traced, example)

    monkeypatch.setattr(writing, "trace", refusing)
    model = network("gpt2", n_layer=1)
    checked = write(model, tmp_path, ["onnx"], length=4)
    assert (checked.cached, checked.whole) == (False, "with a cache the model cannot be traced: no")
    assert not isinstance(reader("onnx", tmp_path, Network(model).inputs), CachedCall)


def test_torch_decoder_begins_again() -> None:
    decoder = Network(network("gpt2", n_layer=1))
    ids, mask = decoder.batch(2, 6)
    call = CachedCall(TorchDecoder(decoder), pieces=True)
    with torch.no_grad():
        torch.testing.assert_close(call(ids, mask), decoder(ids, mask), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(call(ids, mask), decoder(ids, mask), rtol=1e-4, atol=1e-5)
