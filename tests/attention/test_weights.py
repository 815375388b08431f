"""Weights of a mechanism: what it makes of the values is their product, and they have a gradient."""

import pytest
import torch
from cases import draw, each_form, holes, unmasked
from rows import ROWS

NONE = {str(row) for row in ROWS if row.options.get("projection") in ("max", "convolution")}
"""Rows whose outputs are no sums of values."""


@each_form
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_the_formula_is_weights_by_values(row, causal, masked):
    module = row.build(causal=causal).double().train()
    q, k, v = (x.requires_grad_() for x in draw(11, 11))
    key_mask = holes(11) if masked else None
    if str(row) in NONE:
        with pytest.raises(ValueError, match=r"output_attentions must be False with projection '(max|convolution)'"):
            module.weights(q, k, key_mask)
        return
    of_values, added = module.weights(q, k, key_mask)
    weights = of_values["v"]
    assert weights.shape == (*q.shape[:3], 11)
    assert module.training  # as it was
    expected = row.reference(module.eval(), q, k, v, key_mask)
    torch.testing.assert_close(
        *(unmasked(x, key_mask) for x in (weights @ v + added, expected)), rtol=1e-10, atol=1e-12
    )
    if causal:
        assert not weights.triu(1).any()
    if masked:
        assert not weights[~key_mask[:, None, None].expand_as(weights)].any()


def test_queries_and_keys_of_two_sequences():
    row = ROWS[0]
    module, (q, k, v) = row.build(cross=True).double(), draw(7, 11)
    weights, _ = module.weights(q, k, holes(11))
    torch.testing.assert_close(weights["v"] @ v, row.reference(module, q, k, v, holes(11)), rtol=1e-10, atol=1e-12)
