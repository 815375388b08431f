"""What is Longformer's own: global positions of each example, with projections of their own, as in transformers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import runs, tiles
from transformers import LongformerConfig, LongformerModel
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from greenformers.attention import Shape, build
from greenformers.attention.longformer import reference

HEADS, DIM, N = 3, 5, 24
SHAPE = Shape(heads=HEADS, head_dim=DIM, max_len=40)
WINDOW = 3
# The number of global positions differs: the first has none, the last has nothing else.
GLOBAL = torch.stack([torch.zeros(N), torch.arange(N) == 5, torch.arange(N) % 7 < 2, torch.ones(N)]).bool()
PADDING = torch.arange(N) < torch.tensor([N, 19, 15, 21])[:, None]


def drawn(number, length=N):
    generator = torch.Generator().manual_seed(1)
    sizes = (number, len(GLOBAL), HEADS, length, DIM)
    return [x.requires_grad_() for x in torch.randn(sizes, generator=generator, dtype=torch.float64)]


def compare(module, tensors, key_mask, global_mask, *, given=True):
    """Kept outputs and all gradients with those of the formula; the mask as an argument, or as the default."""
    output_mask = True if key_mask is None else key_mask[:, None, :, None]
    rows = dict(zip(module.projections[3:], tensors[3:], strict=False))
    out = output_mask * module(*tensors[:3], key_mask, **rows, global_mask=global_mask if given else None)
    expected = output_mask * reference(module, *tensors[:3], key_mask, **rows, global_mask=global_mask)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    results = [[x, *torch.autograd.grad((weights * x).sum(), tensors, materialize_grads=True)] for x in (out, expected)]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


each_padding = pytest.mark.parametrize("key_mask", [None, PADDING], ids=["", "padded"])


@each_padding
@pytest.mark.parametrize("number", [3, 6], ids=["one projection", "two projections"])
@pytest.mark.parametrize("dilation", [1, (1, 3, 2)])
def test_global_positions_of_each_example(number, key_mask, dilation):
    module = build("longformer", SHAPE, window=WINDOW, dilation=dilation)
    compare(module, drawn(number), key_mask, GLOBAL)


@each_padding
@pytest.mark.parametrize("mask", [torch.zeros_like(GLOBAL), torch.ones_like(GLOBAL)], ids=["none", "all"])
def test_no_position_or_every_one_is_global(mask, key_mask):
    compare(build("longformer", SHAPE, window=WINDOW), drawn(6), key_mask, mask)


@each_padding
@pytest.mark.parametrize("count", [0, 1, 4, 30])
def test_without_a_mask_so_many_first_positions_are_global(count, key_mask):
    first = (torch.arange(N) < count).expand(len(GLOBAL), -1)
    compare(build("longformer", SHAPE, window=WINDOW, globals=count), drawn(6), key_mask, first, given=False)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_global_positions_across_the_edges_of_tiles(data):
    run = data.draw(runs("longformer", causal=False, longest=70))
    shares = data.draw(st.lists(st.sampled_from((0.0, 0.02, 0.3, 1.0)), min_size=run.batch, max_size=run.batch))
    generator = torch.Generator().manual_seed(run.seed)
    mask = torch.rand(run.batch, run.keys, generator=generator) < torch.tensor(shares)[:, None]
    rows = [x.detach().flip(0, 2).requires_grad_() for x in run.tensors()]
    with tiles(run.rows, run.size):
        compare(run.build(), [*run.tensors(), *rows], run.key_mask(), mask)


def test_a_global_position_that_is_padding_is_seen_by_nobody():
    module, tensors = build("longformer", SHAPE, window=WINDOW), drawn(6)
    others = [x.detach().clone() for x in tensors]
    hidden = ~PADDING & GLOBAL
    assert hidden.any()
    for x in others:
        x.transpose(1, 2)[hidden] = 1e3
    out, changed = (
        module(*x[:3], PADDING, **dict(zip(module.projections[3:], x[3:], strict=True)), global_mask=GLOBAL)
        for x in (tensors, others)
    )
    assert torch.equal(out.transpose(1, 2)[PADDING], changed.transpose(1, 2)[PADDING])


def in_place_of(theirs, mechanism):
    """The mechanism with the projections of a LongformerSelfAttention, as its forward."""
    names = ("query", "key", "value", "query_global", "key_global", "value_global")

    def forward(hidden_states, is_index_masked, is_index_global_attn, **_):
        heads = [
            getattr(theirs, name)(hidden_states).unflatten(2, (theirs.num_heads, -1)).transpose(1, 2) for name in names
        ]
        given = dict(zip(mechanism.projections, heads, strict=True))
        out = mechanism(**given, key_mask=~is_index_masked, global_mask=is_index_global_attn)
        return (out.transpose(1, 2).flatten(2),)

    return forward


def configuration(window):
    return LongformerConfig(
        vocab_size=50,
        hidden_size=HEADS * DIM,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=31,
        max_position_embeddings=80,
        attention_window=[2 * window] * 2,
        pad_token_id=1,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.5,
    )


@pytest.mark.parametrize("window", [2, 3, 4])
def test_equals_that_of_transformers(window):
    torch.manual_seed(0)
    theirs = LongformerSelfAttention(configuration(window), 0).eval()
    hidden, marks = torch.randn(len(GLOBAL), N, HEADS * DIM), torch.where(PADDING, 0.0, -1.0)
    marks[GLOBAL & PADDING] = 1.0
    given = {"attention_mask": marks, "is_index_masked": marks < 0, "is_index_global_attn": marks > 0}
    with torch.no_grad():
        expected = theirs(hidden, **given, is_global_attn=True)[0]
        out = in_place_of(theirs, build("longformer", SHAPE, window=window))(hidden, **given)[0]
    torch.testing.assert_close(out[PADDING], expected[PADDING], rtol=0, atol=1e-5)
    assert expected.std() > 0.1


def test_a_whole_model_of_transformers_with_it_stays_the_same():
    torch.manual_seed(0)
    model = LongformerModel(configuration(WINDOW)).eval()
    length = 41  # not a multiple of the window: transformers pads
    ids, mask = torch.randint(2, 50, (3, length)), torch.arange(length) < torch.tensor([41, 30, 7])[:, None]
    marked = {"attention_mask": mask.long(), "global_attention_mask": (ids % 9 == 0) & mask}
    assert len(set(marked["global_attention_mask"].sum(1).tolist())) > 1
    with torch.no_grad():
        expected = model(ids, **marked).last_hidden_state
        for layer in model.encoder.layer:
            theirs, shape = layer.attention.self, Shape(heads=HEADS, head_dim=DIM, max_len=48)
            theirs.forward = in_place_of(theirs, build("longformer", shape, window=WINDOW))
        out = model(ids, **marked).last_hidden_state
    torch.testing.assert_close(out[mask], expected[mask], rtol=0, atol=1e-5)


def test_a_batch_of_nothing_has_no_global_positions():
    tensors = [x[:0] for x in drawn(3)]
    out = build("longformer", SHAPE, window=WINDOW)(*tensors, global_mask=GLOBAL[:0])
    assert out.shape == tensors[0].shape


@pytest.mark.parametrize("mask", [GLOBAL[:, 1:], GLOBAL[:1], GLOBAL.long(), GLOBAL[0]])
def test_a_global_mask_that_does_not_fit_says_so(mask):
    with pytest.raises(ValueError, match=r"global_mask must be a bool tensor \(4, 24\), got torch\."):
        build("longformer", SHAPE, window=WINDOW)(*drawn(3), global_mask=mask)


@pytest.mark.parametrize("name", ["q_global", "k_global", "v_global"])
def test_global_projections_that_do_not_fit_say_so(name):
    with pytest.raises(ValueError, match=rf"{name} must be \(4, 3, 24, 5\), got \(4, 3, 23, 5\)"):
        build("longformer", SHAPE, window=WINDOW)(*drawn(3), **{name: drawn(1, length=23)[0]})
