"""Nobody reads what they must not see: the future, padding, and the neighbours in the batch. To the bit."""

import pytest
import torch
from cases import BATCH, draw, each_form, each_kind_form, each_row, filled, holes, huge, noise, unmasked
from rows import ROWS

causal_row = pytest.mark.parametrize("row", [row for row in ROWS if row.causal], ids=str)
other_contents = pytest.mark.parametrize("fill", [noise, huge])


def causal_lengths(row):
    """(N, M); 67 is longer than one block of torch's kernel."""
    return [(1, 1), (7, 7), (67, 67), *([(1, 5), (7, 11), (5, 67)] if row.cross else [])]


def positions(queries):
    """Each of them, whose future is looked at; some of many."""
    return range(0, queries, 1 if queries < 10 else 11)


def repeated(x, at):
    """A batch of a copy for each of these positions, one after the other."""
    return None if x is None else x.repeat(len(at), *[1] * (x.dim() - 1))


def later_than(at, length, past):
    """(B, length): what is later than the position of its copy."""
    return torch.stack([torch.arange(length) > past + i for i in at]).repeat_interleave(BATCH, 0)


@causal_row
@pytest.mark.parametrize(("masked", "fill"), [(False, noise), (True, huge)], ids=["", "masked"])
def test_the_future_never_changes_an_output(row, masked, fill):
    for queries, keys in causal_lengths(row):
        module = row.build(causal=True, cross=queries != keys, max_len=67)
        key_mask = holes(keys) if masked else None
        at = positions(queries)
        q, k, v = (repeated(x, at) for x in draw(queries, keys, dtype=torch.float32))
        given = repeated(key_mask, at)
        past = keys - queries  # the queries are the last N of M positions
        later_q, later = (later_than(at, length, past) for length, past in ((queries, 0), (keys, past)))
        out = module(q, k, v, given)
        changed = module(filled(q, later_q, fill), filled(k, later, fill), filled(v, later, fill), given)
        for i, before, after in zip(at, out.split(BATCH), changed.split(BATCH), strict=True):
            assert torch.equal(after[:, :, : i + 1], before[:, :, : i + 1]), (queries, keys, i)
            # Without queries, or with those that are the keys, nothing changes where all later keys are padding.
            asks = "q" in module.projections and not module.shares_qk
            reads = asks or key_mask is None or key_mask[:, past + i + 1 :].any()
            if i + 1 < queries and reads:
                assert not torch.equal(after[:, :, i + 1 :], before[:, :, i + 1 :])


@causal_row
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_an_output_has_no_gradient_in_its_future(row, masked):
    for queries, keys in causal_lengths(row):
        module = row.build(causal=True, cross=queries != keys, max_len=67)
        key_mask = holes(keys) if masked else None
        at = positions(queries)
        inputs = [repeated(x, at).requires_grad_() for x in draw(queries, keys, dtype=torch.float32)]
        outs = module(*inputs, repeated(key_mask, at)).split(BATCH)
        past = keys - queries
        total = sum(out[:, :, i].sum() for i, out in zip(at, outs, strict=True))
        of_all = torch.autograd.grad(total, inputs, materialize_grads=True)
        for i, *grads in zip(at, *(grad.split(BATCH) for grad in of_all), strict=True):
            for grad, position in zip(grads, (i, past + i, past + i), strict=True):
                assert not grad[:, :, position + 1 :].any()
            # The first position sees nothing where a query does not see itself.
            if (key_mask is None or key_mask[1, past + i]) and (past + i or getattr(module, "include_self", True)):
                assert grads[2][1].any()


@each_row
def test_what_has_no_causal_form_says_so(row):
    if row.causal:
        row.build(causal=True)
    else:
        with pytest.raises(ValueError, match=f"{row.name} has no causal form"):
            row.build(causal=True)


@each_row
def test_what_has_no_cross_attention_says_so(row):
    if row.cross:
        assert row.build(cross=True)(*draw(7, 11, dtype=torch.float32)).shape == (BATCH, 3, 7, 5)
    else:
        with pytest.raises(ValueError, match="cross"):
            row.build(cross=True)


@each_form
@other_contents
def test_contents_of_padding_change_nothing(row, causal, fill):
    """Neither the kept outputs nor the gradients that flow from them; padding itself gets gradient 0."""
    padding_changes_nothing(row, causal, fill, holes(11), {})
    if row.cross:  # queries that are masked apart
        padding_changes_nothing(row, causal, fill, holes(7), {"query_mask": holes(7)})


def padding_changes_nothing(row, causal, fill, query_mask, given):
    n = query_mask.shape[1]
    module, key_mask = row.build(causal=causal, cross=n != 11), holes(11)
    masks = (query_mask, key_mask, key_mask)
    inputs = [x.requires_grad_() for x in draw(n, 11, dtype=torch.float32)]
    others = [filled(x, ~mask, fill) for x, mask in zip(inputs, masks, strict=True)]

    def outputs_and_gradients(tensors):
        out = unmasked(module(*tensors, key_mask, **given), query_mask)
        return out, torch.autograd.grad(out.square().sum(), [*tensors, *module.parameters()], materialize_grads=True)

    (out, grads), (out_of_others, grads_of_others) = map(outputs_and_gradients, (inputs, others))
    assert torch.equal(out_of_others, out)
    for grad_of_other, grad in zip(grads_of_others, grads, strict=True):
        assert torch.equal(grad_of_other, grad)
    for grad, mask in zip(grads[:3], masks, strict=True):
        assert not grad.transpose(1, 2)[~mask].any()
    assert grads[2].any()


@each_kind_form
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_neighbours_in_the_batch_do_not_matter(row, causal, masked):
    module = row.build(causal=causal).double()
    q, k, v = draw(11, 11, batch=3)
    mask = holes(11, batch=3) if masked else None
    together = module(q, k, v, mask)
    for b in range(3):
        example = slice(b, b + 1)
        example_mask = None if mask is None else mask[example]
        alone = module(q[example], k[example], v[example], example_mask)
        torch.testing.assert_close(
            unmasked(together[example], example_mask), unmasked(alone, example_mask), rtol=1e-12, atol=1e-12
        )


@each_form
def test_without_any_key_the_output_is_0_and_gradients_finite(row, causal):
    for queries in (11, 7) if row.cross else (11,):
        without_any_key(row, causal, queries)


def without_any_key(row, causal, queries):
    module = row.build(causal=causal, cross=queries != 11)
    key_mask = torch.tensor([[False], [True]]).expand(-1, 11)
    q, k, v = (x.requires_grad_() for x in draw(queries, 11, dtype=torch.float32))
    out = module(q, k, v, key_mask)
    assert not out[0].any()
    assert out[1].isfinite().all()
    assert out[1].any()

    tensors = [q, k, v, *module.parameters()]
    for grad in torch.autograd.grad(out.square().sum() + out.sum(), tensors, materialize_grads=True):
        assert grad.isfinite().all()
