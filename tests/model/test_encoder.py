import pytest
import torch
from networks import LAYERS, NETWORKS, VOCABULARY, config, d, padding, stir
from plain_layer import plain

from greenformers.model import GreenformerModel

B, N, C = 3, 13, 2


def model(name="transformer", **options):
    return stir(GreenformerModel(config(name, **options)).double()).eval()


def tokens():
    return torch.randint(VOCABULARY, (B, N))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("residual", ["post", "pre"])
@pytest.mark.parametrize("name", NETWORKS)
def test_is_embedding_layers_norm_and_pooling(name, residual, masked):
    network, ids = model(name, residual=residual), tokens()
    mask = padding(B, N) if masked else None
    x = network.embedding(ids)
    for layer in network.layers:
        x = plain(layer, x, mask)
    x = network.final_norm(x)
    out = network(ids, None if mask is None else mask.long())
    torch.testing.assert_close(out.last_hidden_state, x, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(out.pooler_output, x[:, 0], atol=1e-12, rtol=1e-12)


def test_only_pre_norm_ends_in_a_norm():
    ids = tokens()
    pre = model(residual="pre")
    torch.nn.init.zeros_(pre.final_norm.weight)
    expected = pre.final_norm.bias.expand(B, N, d)
    torch.testing.assert_close(pre(ids).last_hidden_state, expected)
    assert not list(model().final_norm.parameters())


def test_values_and_their_mask():
    network, x = model(input_features=C), torch.randn(B, N, C, dtype=torch.float64)
    mask = padding(B, N)
    out = network(input_values=x, attention_mask=mask)
    assert out.last_hidden_state.shape == (B, N + 1, d)
    alone = [network(input_values=x[i : i + 1, : mask[i].sum()]).last_hidden_state[0, 0] for i in range(B)]
    torch.testing.assert_close(out.pooler_output, torch.stack(alone), atol=1e-12, rtol=1e-12)
    # Nothing but the [CLS] is kept: it is still there to be seen.
    nothing = network(input_values=x, attention_mask=torch.zeros(B, N)).pooler_output
    torch.testing.assert_close(nothing, nothing[:1].expand(B, d), atol=1e-12, rtol=1e-12)


def test_mean_pooling_is_over_kept_positions():
    network, ids, mask = model(pooling="mean"), tokens(), padding(B, N)
    out = network(ids, mask)
    expected = torch.stack([out.last_hidden_state[i, mask[i]].mean(0) for i in range(B)])
    torch.testing.assert_close(out.pooler_output, expected, atol=1e-12, rtol=1e-12)
    out = network(ids)
    torch.testing.assert_close(out.pooler_output, out.last_hidden_state.mean(1), atol=1e-12, rtol=1e-12)
    assert network(ids, torch.zeros(B, N)).pooler_output.count_nonzero() == 0


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_stands_in_padding_changes_nothing(name, pooling):
    network, ids, mask = model(name, pooling=pooling).float(), tokens(), padding(B, N)
    other = ids.where(mask, (ids + 1 + torch.randint(VOCABULARY - 1, (B, N))) % VOCABULARY)
    assert (other != ids).equal(~mask)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            first, second = network(ids, mask), network(other, mask)
        torch.testing.assert_close(second.last_hidden_state[mask], first.last_hidden_state[mask], atol=1e-6, rtol=0)
        torch.testing.assert_close(second.pooler_output, first.pooler_output, atol=1e-6, rtol=0)
        assert not torch.allclose(network(other).pooler_output, network(ids).pooler_output, atol=1e-3)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_padded_sequence_equals_the_short_one(name):
    network, ids, mask = model(name), tokens(), padding(B, N)
    padded = network(ids, mask).last_hidden_state
    for i, length in enumerate(mask.sum(1).tolist()):
        alone = network(ids[i : i + 1, :length]).last_hidden_state[0]
        torch.testing.assert_close(padded[i, :length], alone, atol=1e-12, rtol=1e-12)


def test_a_mask_that_does_not_fit():
    with pytest.raises(ValueError, match="attention_mask must be") as caught:
        model()(tokens(), torch.ones(B, N + 1))
    assert str(caught.value) == "attention_mask must be (3, 13), got (3, 14)"
    values = model(input_features=C)
    with pytest.raises(ValueError, match="attention_mask must be") as caught:
        values(input_values=torch.randn(B, N, C, dtype=torch.float64), attention_mask=torch.ones(B, N + 1))
    assert str(caught.value) == "attention_mask must be (3, 13), got (3, 14)"


def test_a_misspelt_mask_is_not_ignored():
    with pytest.raises(TypeError, match="attention_maks"):
        model()(tokens(), attention_maks=padding(B, N))


@pytest.mark.parametrize("residual", ["post", "pre"])
@pytest.mark.parametrize("grad", [True, False])
def test_hidden_states(grad, residual):
    network, ids = model("lrt+linformer", residual=residual), tokens()
    with torch.set_grad_enabled(grad):
        out = network(ids, output_hidden_states=True)
        assert len(out.hidden_states) == LAYERS + 1
        torch.testing.assert_close(out.hidden_states[0], network.embedding(ids))
        torch.testing.assert_close(out.hidden_states[1], network.layers[0](out.hidden_states[0]))
        torch.testing.assert_close(out.hidden_states[-1], out.last_hidden_state, atol=0, rtol=0)
        assert network(ids).hidden_states is None


def test_as_a_tuple():
    network, ids = model(), tokens()
    out = network(ids)
    hidden, pooled = network(ids, return_dict=False)
    torch.testing.assert_close(hidden, out.last_hidden_state, atol=0, rtol=0)
    torch.testing.assert_close(pooled, out.pooler_output, atol=0, rtol=0)
    assert len(network(ids, return_dict=False, output_hidden_states=True)) == 3


def test_a_slot_of_each_layer():
    network = model(
        attention=["full", "linformer"],
        attention_options=[None, {"k": 5}],
        rank=[None, {"q": 3}],
    )
    first, second = (layer.attention for layer in network.layers)
    assert [type(part.mechanism).__name__ for part in (first, second)] == ["Full", "Linformer"]
    assert second.mechanism.k == 5
    assert [type(part.projections["q"]).__name__ for part in (first, second)] == ["Linear", "LED"]
    assert network(tokens(), padding(B, N)).last_hidden_state.isfinite().all()


def test_a_k_of_each_layer():
    network = model("linformer", attention_options={"k": [11, 5]})
    assert [layer.attention.mechanism.k for layer in network.layers] == [11, 5]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"rank": 16}, ValueError, "rank must be in 1..15 for a 15 x 15 linear layer, got 16"),
        ({"attention": "linformer", "attention_options": {"k": 24}}, ValueError, "k must be in 1..23"),
        ({"attention": "linformer", "attention_options": {"q": 5}}, TypeError, "'q'"),
    ],
)
def test_what_a_slot_does_not_take(options, kind, message):
    with pytest.raises(kind, match=message):
        GreenformerModel(config(**options))


def test_means_that_float16_holds():
    model, x = GreenformerModel(config(pooling="mean")), torch.full((1, 4096, d), 20.0).half()
    mask = torch.arange(4096)[None] < 4000
    assert model._pool(x, mask).eq(20).all()


def test_padding_of_embeddings_may_be_anything():
    model = stir(GreenformerModel(config(pooling="mean")).double()).eval()
    x, mask = torch.randn(1, 9, d).double(), (torch.arange(9) < 6)[None]
    out = model(inputs_embeds=x.masked_fill(~mask[..., None], torch.nan), attention_mask=mask)
    alone = model(inputs_embeds=x[:, :6])
    torch.testing.assert_close(out.pooler_output, alone.pooler_output)
    torch.testing.assert_close(out.last_hidden_state[:, :6], alone.last_hidden_state)
