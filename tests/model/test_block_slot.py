"""Blocks of their own kind in networks, and the pooling that is one."""

import sys

import pytest
import torch
from transformers import DynamicCache

import greenformers.blocks
from greenformers.lowrank.linear import LED
from greenformers.model import (
    GreenformerConfig,
    GreenformerForCausalLM,
    GreenformerForMaskedLM,
    GreenformerForSequenceClassification,
    GreenformerModel,
)
from greenformers.model.config import choices
from greenformers.model.variant import slots

BLOCKS = tuple(choices("block")[1:])
LENGTH = 13


def config(**given):
    sizes = {
        "vocab_size": 17, "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 19, "num_hidden_layers": 3,
        "max_position_embeddings": 23, "hidden_dropout_prob": 0.0, "initializer_range": 0.3, "pad_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(0)
    return GreenformerConfig(**sizes | given)


def tokens(length=LENGTH):
    return torch.randint(1, 17, (2, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("block", BLOCKS)
def test_padding_changes_nothing(block):
    model = GreenformerModel(config(block=block, pooling="mean")).double().eval()
    ids = tokens()
    longer = torch.cat([ids, torch.full((2, 6), 3)], 1)
    mask = (torch.arange(LENGTH + 6) < LENGTH).long().expand(2, -1)
    short, long = model(ids), model(longer, mask)
    torch.testing.assert_close(long.last_hidden_state[:, :LENGTH], short.last_hidden_state)
    torch.testing.assert_close(long.pooler_output, short.pooler_output)


@pytest.mark.parametrize("block", BLOCKS)
def test_all_parameters_learn_and_are_stored(block, tmp_path):
    model = GreenformerForMaskedLM(config(block=block)).train()
    ids = tokens()
    model(ids, labels=ids).loss.backward()
    still = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    # What the last layer hands on is read by nobody.
    assert [name for name in still if "layers.2." not in name] == []
    model.eval().save_pretrained(tmp_path)
    again = GreenformerForMaskedLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(ids).logits, model(ids).logits, atol=0, rtol=0)


def test_what_a_block_hands_on_reaches_the_next_layer():
    """A star whose relay is forgotten between the layers would be another function."""
    model = GreenformerModel(config(block="star")).double().eval()
    x = model.embedding(tokens())
    alone = x
    for layer in model.layers:
        alone = layer(alone, None, None)[0]
    assert (model(tokens()).last_hidden_state - alone).abs().max() > 1e-3


@pytest.mark.parametrize("block", BLOCKS)
def test_recomputed_activations_give_the_same_gradients(block):
    grads = []
    for recompute in (False, True):
        model = GreenformerForMaskedLM(config(block=block)).double().train()
        if recompute:
            model.activation_checkpointing_enable()
        ids = tokens()
        model(ids, labels=ids).loss.backward()
        grads.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("block", BLOCKS)
def test_hidden_states_and_ranks_and_shared_depth(block):
    model = GreenformerModel(config(block=block, rank=3)).eval()
    assert len(model(tokens(), output_hidden_states=True).hidden_states) == 4
    assert any(isinstance(module, LED) for module in model.layers[2].modules())
    shared = GreenformerModel(config(block=block, depth="shared"))
    names = {id(parameter) for layer in shared.layers for parameter in layer.parameters()}
    assert len(names) == len(list(shared.layers[0].parameters()))
    with pytest.raises(ValueError, match=f"shared must be all where block is {block}, got 'attention'"):
        config(block=block, depth="shared", shared="attention")


def test_bp_generates_without_a_cache():
    model = GreenformerForCausalLM(config(block="bp")).double().eval()
    ids = tokens()
    out = model.generate(ids, max_new_tokens=5, do_sample=False, eos_token_id=None)
    expected = ids
    for _ in range(5):
        expected = torch.cat([expected, model(expected).logits[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(out, expected)
    with pytest.raises(ValueError, match="a network of bp keeps no cache"):
        model(ids, past_key_values=DynamicCache())


@pytest.mark.parametrize("block", ["isab", "star"])
def test_what_has_no_causal_form(block):
    with pytest.raises(ValueError, match=f"{block} has no causal form"):
        GreenformerForCausalLM(config(block=block))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    ("slot", "value"), [("attention", "linformer"), ("residual", "pre"), ("residual", "reversible")]
)
def test_slots_that_have_no_place_are_refused(block, slot, value):
    with pytest.raises(ValueError, match=f"{slot} must be .* where block is {block}, got '{value}'"):
        config(block=block, **{slot: value})


def test_pma_pools_what_is_kept_in_any_order():
    model = GreenformerForSequenceClassification(config(pooling="pma", position="none", num_labels=3)).double().eval()
    ids, mask = tokens(), (torch.arange(LENGTH) % 5 != 2).long().expand(2, -1)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(2))
    out = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(model(ids[:, order], attention_mask=mask[:, order]).logits, out)
    other = torch.where(mask.bool(), ids, 7)
    torch.testing.assert_close(model(other, attention_mask=mask).logits, out)
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in model.encoder.pool.parameters())


def test_variants():
    assert slots("lrt+bp", rank=8, options={"bp": {"k": 2}}) == {"rank": 8, "block": "bp", "block_options": {"k": 2}}
    with pytest.raises(ValueError, match=r"variant must be one of .*, star, or lrt"):
        slots("stars", rank=8)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A layer and a pooling of the user's own, in files of the folder."""
    top = "from greenformers.blocks import Block\n\n\n"
    (tmp_path / "twice.py").write_text(
        f"{top}class Twice(Block):\n    has_feed_forward = True\n    positions = 'own'\n\n"
        "    def __init__(self, size):\n        super().__init__(size)\n"
        "        self.feed_forward = size.make_feed_forward()\n\n"
        "    def forward(self, x, mask=None, memory=None):\n"
        "        return self.feed_forward(self.feed_forward(x, mask), mask), None\n"
    )
    (tmp_path / "first.py").write_text(
        f"{top}class First(Block):\n    keeps_length = False\n\n"
        "    def forward(self, x, mask=None, memory=None):\n        return 2 * x[:, :1], None\n"
    )
    monkeypatch.setattr(greenformers.blocks, "__path__", [*greenformers.blocks.__path__, str(tmp_path)])
    yield
    for name in ("twice", "first"):
        sys.modules.pop(f"greenformers.blocks.{name}", None)


@pytest.mark.usefixtures("files")
def test_another_file_is_another_block():
    given = config(block="twice", pooling="first", feed_forward="chunked", feed_forward_options={"chunk": 3})
    assert given.own_positions
    model = GreenformerModel(given).double().eval()
    out = model(tokens())
    x = model.embedding(tokens())
    for layer in model.layers:
        x = layer.block.feed_forward(layer.block.feed_forward(x))
    torch.testing.assert_close(out.last_hidden_state, x)
    torch.testing.assert_close(out.pooler_output, 2 * x[:, 0])
    assert slots("lrt+twice", rank=3) == {"rank": 3, "block": "twice", "block_options": None}
    with pytest.raises(ValueError, match=r"block must be one of standard, bp, isab, star, twice; got 'first'"):
        config(block="first")
    with pytest.raises(ValueError, match=r"pooling must be one of cls, mean, first, pma; got 'twice'"):
        config(pooling="twice")


def test_what_blocks_say_of_themselves():
    assert BLOCKS == ("bp", "isab", "star")
    assert [config(block=block).own_positions for block in BLOCKS] == [True, False, False]
    config(block="bp", feed_forward="chunked")
    for block in ("isab", "star"):
        with pytest.raises(ValueError, match=f"feed_forward must be dense where block is {block}, got 'chunked'"):
            config(block=block, feed_forward="chunked")
