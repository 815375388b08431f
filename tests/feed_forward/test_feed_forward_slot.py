"""The feed-forward slot: the folder is the registry, and a file put into it is all that another kind takes."""

import ast
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import DynamicCache

import greenformers.feed_forward
from greenformers.feed_forward import FeedForward, Size, build, names
from greenformers.feed_forward.dense import Dense
from greenformers.model import GreenformerConfig, GreenformerForCausalLM, GreenformerForMaskedLM, GreenformerModel
from greenformers.model.seq2seq import GreenformerForSeq2SeqLM

FOLDER = Path(greenformers.feed_forward.__file__).parent
D, F, N = 10, 14, 13
TOY = '''
import torch
from torch import nn
from greenformers.feed_forward import FeedForward


class Centred(FeedForward):
    """One linear layer of what differs from the mean over the kept positions; its loss is what it gives, squared."""

    has_loss = True
    by_position = False

    def __init__(self, size, *, scale=1.0):
        super().__init__(size)
        self.scale, self.only = scale, nn.Linear(size.width, size.width)
        self.own = nn.Parameter(torch.empty(size.width))
        self.seen = []

    def reset_parameters(self):
        nn.init.constant_(self.own, 0.25)

    def forward(self, x, mask=None):
        self.seen.append((tuple(x.shape), None if mask is None else tuple(mask.shape)))
        kept = torch.ones_like(x[..., :1]) if mask is None else mask[..., None].to(x.dtype)
        mean = (x * kept).sum(-2, keepdim=True) / kept.sum(-2, keepdim=True)
        return self.scale * self.only(x - mean) + self.own

    def forward_with_loss(self, x, mask=None):
        y = self(x, mask)
        return y, self.scale * y.square().mean()
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "centred.py").write_text(TOY)
    monkeypatch.setattr(greenformers.feed_forward, "__path__", [*greenformers.feed_forward.__path__, str(tmp_path)])
    yield "centred"
    sys.modules.pop("greenformers.feed_forward.centred", None)


def config(**given) -> GreenformerConfig:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 17, "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 19, "num_hidden_layers": 2,
        "max_position_embeddings": 23, "hidden_dropout_prob": 0.0, "initializer_range": 0.3, "pad_token_id": 0,
    }  # fmt: skip
    return GreenformerConfig(**sizes | given)


def tokens(length=N):
    return torch.randint(1, 17, (2, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("name", names())
def test_the_contract(name, rank):
    torch.manual_seed(0)
    block = build(name, Size(D, F, nn.GELU, ranks={"up": rank, "down": rank})).double().eval()
    x = torch.randn(2, N, D, dtype=torch.float64, requires_grad=True)
    mask = (torch.arange(N) < 7).expand(2, -1)
    y = block(x, mask)
    assert y.shape == x.shape
    changed = block(torch.where(mask[..., None], x, x.detach() + 1), mask)
    torch.testing.assert_close(changed[mask], y[mask])
    grads = torch.autograd.grad(y.square().sum(), [x, *block.parameters()])
    assert all(grad.isfinite().all() and grad.any() for grad in grads)
    if block.by_position:
        torch.testing.assert_close(torch.cat([block(part) for part in x.split(5, 1)], 1), block(x))
    if not block.has_loss:
        with pytest.raises(NotImplementedError, match=f"{name.title()} has no loss of its own"):
            block.forward_with_loss(x)


def test_the_names_are_those_of_the_files():
    assert names() == sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    for path in FOLDER.glob("[!_]*.py"):
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        siblings = {str(node.module).removeprefix("greenformers.feed_forward.") for node in imports} & set(names())
        assert not siblings, f"{path.name} imports {siblings}"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: build("densely", Size(D, F)), ValueError, "feed_forward must be one of .*, switch; got 'densely'"),
        (lambda: build("_contract", Size(D, F)), ValueError, "got '_contract'"),
        (lambda: build("dense", Size(D, F), chunk=3), TypeError, "chunk"),
        (lambda: build("chunked", Size(D, F), chunk=0), ValueError, "chunk must be at least 1, got 0"),
        (lambda: Size(0, F), ValueError, "width must be at least 1, got 0"),
        (lambda: Size(D, F, layer=2, layers=2), ValueError, r"layer must be in 0\.\.1, got 2"),
        (lambda: config(feed_forward=["dense"]), ValueError, "feed_forward must have one entry a layer, 2, got 1"),
        (lambda: config(feed_forward_chunk=3), TypeError, "no option 'feed_forward_chunk'; did you mean"),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_base_does_nothing():
    with pytest.raises(NotImplementedError):
        FeedForward(Size(D, F))(torch.zeros(1, D))


def test_a_kind_may_stand_in_some_layers():
    model = GreenformerModel(
        config(feed_forward=["dense", "chunked"], feed_forward_options=[None, {"chunk": 3}], rank=[3, None])
    )
    blocks = [layer.feed_forward for layer in model.layers]
    assert [type(block).__name__ for block in blocks] == ["Dense", "Chunked"]
    assert (blocks[0].up.rank, blocks[1].chunk, blocks[1].size.layer) == (3, 3, 1)


def test_another_file_is_another_kind(toy, tmp_path):
    assert toy in names()
    given = {"feed_forward": toy, "feed_forward_options": {"scale": 2.0}}
    model = GreenformerForMaskedLM(config(**given)).double()
    ids, mask = tokens(), (torch.arange(N) < 9).long().expand(2, -1)
    blocks = [layer.feed_forward for layer in model.encoder.layers]
    assert all(block.own.tolist() == [0.25] * 12 for block in blocks), "the model draws its parameters"
    expected = model.eval()(ids, mask).logits
    with torch.no_grad():  # in inference layers work in slices, but a block that mixes positions is given all of them
        torch.testing.assert_close(model(ids, mask).logits, expected)
    assert all(set(block.seen) == {((2, N, 12), (2, N))} for block in blocks)
    other = torch.where(mask.bool(), ids, 7)
    torch.testing.assert_close(model(other, mask).logits[:, :9], expected[:, :9])
    model.float().save_pretrained(tmp_path / "saved")
    again = GreenformerForMaskedLM.from_pretrained(tmp_path / "saved").double().eval()
    assert again.encoder.layers[0].feed_forward.scale == 2.0
    torch.testing.assert_close(again(ids, mask).logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("residual", ["post", "pre", "reversible"])
@pytest.mark.parametrize("attention", ["full", "adaptive_span"])
def test_its_loss_is_added_in_training_alone(toy, residual, attention):
    losses, span = {}, {"adaptive_span": {"penalty": 0.5, "init": 0.25}}.get(attention)
    for scale in (1.0, 3.0):
        given = {"feed_forward": toy, "feed_forward_options": {"scale": scale}, "attention": attention}
        given |= {"attention_options": span}
        model = GreenformerModel(config(residual=residual, **given)).double().train()
        for layer in model.layers:
            layer.feed_forward.only.weight.data.zero_()
            layer.feed_forward.only.bias.data.zero_()
        losses[scale] = model(tokens()).auxiliary_loss
        losses[scale].backward()
        assert all(layer.feed_forward.own.grad.any() for layer in model.layers)
        assert model.eval()(tokens()).auxiliary_loss is None
    # With its linear layer at 0 it gives 1/4 everywhere: scale / 16 a layer, beside the loss of the attention.
    assert (losses[3.0] - losses[1.0]).item() == pytest.approx(2 * 2 / 16)
    assert losses[1.0].item() == pytest.approx(2 / 16 + 2 * 0.5 * 23 * 0.25 * (attention == "adaptive_span"))


def test_on_top_of_a_cache_it_is_given_the_mask_of_its_positions(toy):
    model = GreenformerForCausalLM(config(feed_forward=toy)).eval()
    cache, mask = DynamicCache(), torch.ones(2, N, dtype=torch.long)
    mask[0, 0] = 0  # or else there is none
    model(tokens()[:, :9], mask[:, :9], past_key_values=cache, use_cache=True)
    model(tokens()[:, 9:], mask, past_key_values=cache, use_cache=True)
    seen = model.decoder.layers[0].feed_forward.seen
    assert seen == [((2, 9, 12), (2, 9)), ((2, 4, 12), (2, 4))]


def test_where_there_is_no_place_for_its_loss_it_is_refused(toy):
    with pytest.raises(ValueError, match="feed_forward must have no loss of its own in a block, Centred has one"):
        GreenformerModel(config(feed_forward=toy, block="bp"))


@pytest.mark.parametrize("kinds", [[True, True, False], [False, False, True], [True, True, True]])
def test_losses_of_an_encoder_and_of_a_decoder_are_added(toy, kinds):
    names, scale = [toy if own else "dense" for own in kinds], {"scale": 2.0}
    given = {"feed_forward": names, "feed_forward_options": [scale if own else None for own in kinds]}
    model = GreenformerForSeq2SeqLM(config(**given, decoder_layers=1, decoder_start_token_id=1)).double()
    for module in model.modules():
        if hasattr(module, "only"):
            module.only.weight.data.zero_()
            module.only.bias.data.zero_()
    task = model.eval()(tokens(), labels=tokens()).loss
    assert model.train()(tokens(), labels=tokens()).loss.item() == pytest.approx(task.item() + sum(kinds) * 2 / 16)
    model.activation_checkpointing_enable()
    assert model(tokens(), labels=tokens()).loss.item() == pytest.approx(task.item() + sum(kinds) * 2 / 16)


def test_a_block_gives_it_the_mask_of_all_its_nodes(monkeypatch):
    """Of bp: 13 tokens, and 7, 4, 2 and 1 spans of them; the last layer is of tokens alone."""
    masks, forward = [], Dense.forward

    def noted(self, x, mask=None):
        masks.append(mask)
        return forward(self, x, mask)

    monkeypatch.setattr(Dense, "forward", noted)
    model = GreenformerModel(config(block="bp")).eval()
    model(tokens(), (torch.arange(N) < 5).long().expand(2, -1))
    token_mask = [True] * 5 + [False] * 8
    spans = [True] * 3 + [False] * 4 + [True] * 2 + [False] * 2 + [True, False] + [True]
    assert [mask.tolist() for mask in masks] == [[token_mask + spans] * 2, [token_mask] * 2]
    model(tokens())
    assert masks[2:] == [None, None]
