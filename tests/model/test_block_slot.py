"""Blocks of their own kind in networks, and the pooling that is one."""

import sys

import pytest
import torch
from transformers import DynamicCache

import greenformers.blocks
from greenformers.blocks import block_class
from greenformers.lowrank.linear import LED
from greenformers.model import (
    GreenformerConfig,
    GreenformerForCausalLM,
    GreenformerForMaskedLM,
    GreenformerForSeq2SeqLM,
    GreenformerForSequenceClassification,
    GreenformerModel,
)
from greenformers.model.attention import SelfAttention
from greenformers.model.slots import choices
from greenformers.model.variant import slots

BLOCKS = tuple(choices("block")[1:])
ATTENDING = tuple(block for block in BLOCKS if block_class(block).attends)
CACHING = tuple(block for block in BLOCKS if block_class(block).keeps_cache)
CROSSING = tuple(block for block in BLOCKS if block_class(block).crosses)
ALIKE = {"lite": {"kernels": [5]}}
"""Options with which all layers have the same sizes."""
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
    shared = GreenformerModel(config(block=block, block_options=ALIKE.get(block), depth="shared"))
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
    if slot == "attention" and block in ATTENDING:
        assert config(block=block, attention=value).attention == value
        return
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
    with pytest.raises(ValueError, match=r"block must be one of standard, .*, star, twice; got 'first'"):
        config(block="first")
    with pytest.raises(ValueError, match=r"pooling must be one of cls, mean, first, pma; got 'twice'"):
        config(pooling="twice")


def test_what_blocks_say_of_themselves():
    assert BLOCKS == ("bp", "evolved", "independent", "isab", "lite", "star")
    assert [block for block in BLOCKS if config(block=block).own_positions] == ["bp"]
    assert ATTENDING == CACHING == ("evolved", "independent", "lite")
    assert CROSSING == ("evolved", "lite")
    for block in ("bp", *ATTENDING):
        config(block=block, feed_forward="chunked")
    for block in ("isab", "star"):
        with pytest.raises(ValueError, match=f"feed_forward must be dense where block is {block}, got 'chunked'"):
            config(block=block, feed_forward="chunked")
        with pytest.raises(ValueError, match=f"feed_forward_options must be None where block is {block}, got .'chunk'"):
            config(block=block, feed_forward_options={"chunk": 3})


# What blocks of attention do in networks.


def causal(block, **given):
    return stirred(GreenformerForCausalLM(config(block=block, max_position_embeddings=61, **given)))


def pair(block, **given):
    marks = {"decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2, "decoder_layers": 4}
    return stirred(GreenformerForSeq2SeqLM(config(block=block, **marks | given)))


def stirred(model):
    """In double, with parameters that are all at random."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("block", CACHING)
@torch.no_grad()
def test_a_cache_gives_what_the_whole_sequence_gives(block, beams):
    """In pieces of one position and of several, behind padding, and in a beam search."""
    model, ids = causal(block), tokens(40)
    mask = (torch.arange(40) >= torch.tensor([[0], [7]])).long()
    whole = model(ids, attention_mask=mask).logits
    cache, parts = DynamicCache(config=model.config), []
    for start, end in ((0, 1), (1, 12), (12, 13), (13, 37), (37, 40)):
        given = {"attention_mask": mask[:, :end], "past_key_values": cache, "use_cache": True}
        parts.append(model(ids[:, start:end], **given).logits)
        assert cache.get_seq_length() == end
    torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()])
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "num_beams": beams}
    with_cache, without = (model.generate(ids, attention_mask=mask, use_cache=use, **options) for use in (True, False))
    assert torch.equal(with_cache, without)


@pytest.mark.parametrize("block", CACHING)
@torch.no_grad()
def test_rejected_tokens_are_taken_back(block):
    """As assisted generation does: a cache that is cropped goes on as if what went had not been read."""
    model, ids = causal(block), tokens(30)
    cache = model(ids[:, :20], use_cache=True).past_key_values
    model(ids[:, 20:26], past_key_values=cache, use_cache=True)
    cache.crop(-4)
    out = model(ids[:, 22:], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(out, model(ids).logits[:, 22:])


@pytest.mark.parametrize("block", CACHING)
@torch.no_grad()
def test_causal_to_the_bit(block):
    """A greenformer decoder reads nothing to come, neither in attention nor in a convolution."""
    model, ids = causal(block), tokens(40)
    out = model(ids).logits
    for i in (0, 1, 6, 31, 38):
        other = torch.cat([ids[:, : i + 1], 1 + ids[:, i + 1 :] % 16], 1)
        assert torch.equal(model(other).logits[:, : i + 1], out[:, : i + 1])


@pytest.mark.parametrize("attention", ["performer", "sliding_window", "transformer_xl", "synthesizer_dense"])
@pytest.mark.parametrize("block", CACHING)
@torch.no_grad()
def test_mechanisms_in_a_block_keep_their_caches(block, attention):
    """A state, all keys, or those of a window: as many of them in a layer as the block has attentions."""
    model, ids = causal(block, attention=attention), tokens(11)
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None}
    with_cache, without = (model.generate(ids, use_cache=use, **options) for use in (True, False))
    assert torch.equal(with_cache, without)


@pytest.mark.parametrize("attention", ["linformer", "reformer", "bigbird", "nystromformer"])
@pytest.mark.parametrize("block", ATTENDING)
def test_mechanisms_in_a_block_of_an_encoder_learn(block, attention):
    options = {"bigbird": {"block": 2, "random": 1}, "linformer": {"k": 5, "sharing": "layerwise"}}.get(attention)
    model = GreenformerForMaskedLM(config(block=block, attention=attention, attention_options=options)).train()
    ids = tokens()
    model(ids, labels=ids).loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("block", ATTENDING)
def test_what_mechanisms_share_over_layers_is_shared_in_blocks_too(block):
    options = {"k": 5, "sharing": "layerwise"}
    model = GreenformerModel(config(block=block, attention="linformer", attention_options=options))
    held = [module.E for module in model.modules() if isinstance(getattr(module, "E", None), torch.nn.Parameter)]
    assert len(held) >= 3
    assert len({id(E) for E in held}) == len(held) // 3


@pytest.mark.parametrize("block", ATTENDING)
def test_what_does_not_compose_is_refused(block):
    with pytest.raises(ValueError, match="attention must have no loss of its own in a block, Routing has one"):
        GreenformerModel(config(block=block, attention="routing"))
    with pytest.raises(ValueError, match="position rotary is for attention layers"):
        config(block=block, position="rotary")
    with pytest.raises(ValueError, match=f"memory_length must be 0 where block is {block}, got 3"):
        config(block=block, attention="transformer_xl", memory_length=3)
    with pytest.raises(ValueError, match="output_attentions is for layers of attention one after the other"):
        GreenformerModel(config(block=block))(tokens(), output_attentions=True)
    with pytest.raises(ValueError, match=f"{block} takes no memory, got one"):
        GreenformerModel(config(block=block)).layers[0](torch.zeros(2, 3, 12), None, torch.zeros(2, 3, 12))


@pytest.mark.parametrize("block", CROSSING)
def test_pairs_and_attention_weights_of_a_decoder_are_refused(block):
    model, ids = pair(block), tokens()
    with pytest.raises(ValueError, match="output_attentions is for layers of attention"):
        model(ids, decoder_input_ids=ids, output_attentions=True)
    with pytest.raises(ValueError, match="a mask of queries and keys"):
        model(ids, decoder_input_ids=ids, decoder_attention_mask=torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool))


@pytest.mark.parametrize("layers", [2, 5])
@pytest.mark.parametrize("block", BLOCKS)
@torch.no_grad()
def test_an_encoder_decoder_writes_with_a_cache(block, layers):
    """With layers of the block, or standard ones; fewer and more than the encoder has."""
    model, ids = pair(block, decoder_layers=layers), tokens()
    mask = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]])).long()
    kind = "BlockDecoderLayer" if block in CROSSING else "DecoderLayer"
    assert {type(layer).__name__ for layer in model.decoder.layers} == {kind}
    options = {"max_new_tokens": 11, "do_sample": False, "num_beams": 3, "eos_token_id": 16}
    with_cache, without = (model.generate(ids, attention_mask=mask, use_cache=use, **options) for use in (True, False))
    assert torch.equal(with_cache, without)


@pytest.mark.parametrize("block", CROSSING)
@torch.no_grad()
def test_a_decoder_reads_the_encoder_output_and_nothing_else_of_it(block):
    model, ids, target = pair(block), tokens(), tokens(19)
    mask = (torch.arange(LENGTH) < 8).long().expand(2, -1)
    out = model(ids, mask, decoder_input_ids=target).logits
    other = torch.where(mask.bool(), ids, 7)
    torch.testing.assert_close(model(other, mask, decoder_input_ids=target).logits, out)
    assert (model(ids.flip(1), mask, decoder_input_ids=target).logits - out).abs().max() > 1e-3
    later = torch.cat([target[:, :9], 1 + target[:, 9:] % 16], 1)
    assert torch.equal(model(ids, mask, decoder_input_ids=later).logits[:, :9], out[:, :9])


@pytest.mark.parametrize("block", CROSSING)
def test_all_parameters_of_an_encoder_decoder_learn_and_are_stored(block, tmp_path):
    model, ids = pair(block, rank=3, block_options=ALIKE.get(block)).train(), tokens()
    model(ids, labels=ids).loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    model.eval().save_pretrained(tmp_path)
    again = GreenformerForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(again(ids, labels=ids).logits, model(ids, labels=ids).logits)


@pytest.mark.parametrize("block", ATTENDING)
def test_options_of_the_network_reach_the_block(block):
    """The norm of its slot, fewer heads of keys and values, attention dropout."""
    given = {"num_attention_heads": 4, "hidden_size": 24, "num_key_value_heads": 2, "norm": "rms", "qk_norm": True}
    model = GreenformerModel(config(block=block, attention_dropout=0.4, **given))
    kinds = {type(module).__name__ for module in model.layers.modules()}
    assert "RMSNorm" in kinds
    assert "LayerNorm" not in kinds
    attentions = [module for module in model.modules() if isinstance(module, SelfAttention)]
    assert {module.mechanism.dropout for module in attentions} == {0.4}
    assert {module.mechanism.shape.heads // module.key_heads for module in attentions} == {2}
    assert all(module.normalised is not None for module in attentions)


def test_the_norm_behind_the_last_cell():
    kinds = {block: type(GreenformerModel(config(block=block)).final_norm).__name__ for block in BLOCKS}
    assert kinds == dict.fromkeys(BLOCKS, "Identity") | {"evolved": "LayerNorm"}
    model = pair("evolved")
    assert type(model.encoder.final_norm) is type(model.decoder.final_norm) is torch.nn.LayerNorm
