"""How a block calls its mechanism is chosen when it is built, by what the mechanism can do, and never asked again."""

import ast
from functools import partial
from pathlib import Path

import pytest
import torch
from text_networks import causal, tokens
from transformers.cache_utils import DynamicCache

import greenformers
from greenformers.attention import Shape, build
from greenformers.model import GreenformerConfig, attending
from greenformers.model.attention import SelfAttention
from greenformers.model.cache import StateLayer

PACKAGE = Path(greenformers.__file__).parent


def make(attention: str, *, is_causal: bool = True, memory_length: int = 0, **options) -> SelfAttention:
    torch.manual_seed(0)
    config = GreenformerConfig(
        vocab_size=17, hidden_size=12, num_attention_heads=2, intermediate_size=19, num_hidden_layers=1,
        max_position_embeddings=23, attention=attention, attention_options=options, memory_length=memory_length,
    )  # fmt: skip
    return SelfAttention(config, 0, causal=is_causal).double().eval()


@pytest.mark.parametrize(
    ("attention", "without_cache", "with_cache"),
    [
        ("full", attending.plain, attending.cached),
        ("synthesizer_random", attending.plain, attending.cached),
        ("performer", attending.plain, attending.stepping),
        ("linear_transformer", attending.plain, attending.stepping),
        ("transformer_xl", attending.plain, attending.cached),
    ],
)
def test_what_a_mechanism_can_do_says_how_it_is_called(attention, without_cache, with_cache):
    block = make(attention)
    assert block.without_cache is without_cache
    assert block.with_cache is with_cache


def test_a_mechanism_that_shortens_keys_is_given_codes_where_that_is_exact():
    assert make("linformer", is_causal=False, k=5).without_cache is attending.reduced
    assert make("linformer", is_causal=False, k=5, sharing="none").without_cache is attending.plain


@pytest.mark.parametrize(
    ("attention", "options", "limit"), [("transformer_xl", {}, 7), ("compressive", {"ratio": 3, "compressed": 4}, 11)]
)
def test_a_memory_is_as_long_as_the_network_says_and_its_compressed_part(attention, options, limit):
    call = make(attention, memory_length=7, **options).with_cache
    assert isinstance(call, partial)
    assert call.func is attending.remembering
    assert call.keywords == {"limit": limit}


def test_a_call_asks_no_capability_again(monkeypatch):
    """A choice that were made at every call would change here; it would also be paid for at every token."""
    block, x = make("linear_transformer"), torch.randn(2, 13, 12, dtype=torch.float64)
    expected = block.mix(x, None)[0]
    monkeypatch.setattr(type(block.mechanism), "can_reduce", True)
    torch.testing.assert_close(block.mix(x, None)[0], expected, rtol=0, atol=0)
    network, cache = causal(attention="performer"), DynamicCache()
    monkeypatch.setattr(type(network.decoder.layers[0].attention.mechanism), "can_step", False)
    network(tokens(2, 5), past_key_values=cache, use_cache=True)
    assert all(isinstance(layer, StateLayer) for layer in cache.layers)


def test_the_choice_is_no_part_of_what_is_saved():
    assert set(make("full").state_dict()) == {
        f"{name}.weight" for name in ("projections.q", "projections.k", "projections.v", "output")
    }


def test_what_cannot_compress_says_so():
    full = build("full", Shape(2, 3, 5, causal=True))
    assert (full.compresses, full.compressed, full.compress_multiple) == (False, 0, 1)
    with pytest.raises(NotImplementedError, match="Full has no memory to compress"):
        full.compress(torch.zeros(1, 5, 6), torch.zeros(1, 5, 6), None, lambda x, names: [x for _ in names])


OWN = {"function", "ratio"}
"""Options of one mechanism. Records and people of genomes have a `ratio` too, and `autograd.function` is torch's."""


def asked_of_a_mechanism(source: str) -> list[str]:
    """Reads of such an option of what is called a mechanism: `mechanism.ratio`, `layer.attention.mechanism.ratio`."""
    if "mechanism" not in source or not any(name in source for name in OWN):
        return []  # most files, which take long to parse
    reads = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute) and node.attr in OWN)
    return [read.attr for read in reads if ast.unparse(read.value).split(".")[-1].strip("()") == "mechanism"]


def test_nothing_outside_asks_for_the_options_of_one_mechanism():
    files = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "attention"]
    assert {str(path): options for path in files if (options := asked_of_a_mechanism(path.read_text()))} == {}
    assert asked_of_a_mechanism("x = layer.attention.mechanism.ratio + mechanism.function") == ["ratio", "function"]


@pytest.mark.parametrize("name", ["attention", "memory", "attending", "block"])
def test_the_block_names_neither(name):
    """Under whatever name the mechanism is held."""
    source = ast.parse((PACKAGE / "model" / f"{name}.py").read_text())
    assert not {node.attr for node in ast.walk(source) if isinstance(node, ast.Attribute)} & OWN
