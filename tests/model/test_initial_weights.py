import pytest
import torch
from networks import NETWORKS, config
from torch import nn

from greenformers.lowrank.linear import LED
from greenformers.model import GreenformerForCausalLM, GreenformerForMaskedLM, GreenformerModel


def wide(std, **options):
    """A network with matrices large enough to read a deviation from."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 129, "intermediate_size": 257, "vocab_size": 211}
    return GreenformerForMaskedLM(config(**sizes, initializer_range=std, **options))


@pytest.mark.parametrize("std", [0.02, 0.07])
@pytest.mark.parametrize("rank", [None, 31])
def test_every_map_has_the_deviation_of_the_configuration(rank, std):
    model = wide(std, rank=rank)
    kind = nn.Linear if rank is None else LED
    projections = {name: module for name, module in model.encoder.layers.named_modules() if isinstance(module, kind)}
    assert len(projections) == 2 * 6
    for module in projections.values():
        # 129 x 31 normal numbers and more; the product of two factors scatters more than each of them.
        torch.testing.assert_close(module.weight.std(), torch.tensor(std), atol=0, rtol=0.1)
        assert module.bias.count_nonzero() == 0
    for module in (model.transform, model.encoder.embedding.word, model.encoder.embedding.position):
        torch.testing.assert_close(module.weight.std(), torch.tensor(std), atol=0, rtol=0.05)


def test_norms_start_as_the_identity():
    norms = [module for module in wide(0.02, residual="pre").modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 1 + 2 * 2 + 1 + 1  # embedding, layers, final, head
    for norm in norms:
        assert norm.weight.eq(1).all()
        assert norm.bias.eq(0).all()


def test_the_padding_token_starts_at_zero():
    weight = wide(0.02, pad_token_id=5).encoder.embedding.word.weight
    assert weight[5].count_nonzero() == 0
    assert weight[6].count_nonzero() == weight.shape[1]


def test_cls_of_a_network_of_values():
    cls = wide_values().embedding.cls
    torch.testing.assert_close(cls.std(), torch.tensor(0.07), atol=0, rtol=0.2)


def wide_values():
    torch.manual_seed(0)
    return GreenformerModel(config(input_features=2, hidden_size=1023, initializer_range=0.07))


def test_linformers_projection():
    mechanism = GreenformerModel(config("linformer", max_position_embeddings=521)).layers[1].attention.mechanism
    for matrix in (mechanism.E, mechanism.F):
        torch.testing.assert_close(matrix.sum(-1), torch.ones(matrix.shape[:-1]))
        assert ((matrix > 0).sum(-2) == 1).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_seed_gives_the_same_weights(name):
    def state(seed):
        torch.manual_seed(seed)
        return GreenformerForMaskedLM(config(name)).state_dict()

    torch.testing.assert_close(state(5), state(5), atol=0, rtol=0)
    first, other = state(5), state(6)
    # E and F start as means over windows, whatever the seed.
    drawn = [key for key, x in first.items() if x.ndim > 1 and not key.endswith((".E", ".F"))]
    assert not any(torch.equal(first[key], other[key]) for key in drawn)


@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_is_left_as_memory_gave_it(name, monkeypatch):
    real = torch.empty

    def not_a_number(*args, **options):
        x = real(*args, **options)
        return x.fill_(torch.nan) if x.is_floating_point() else x

    monkeypatch.setattr(torch, "empty", not_a_number)
    model = GreenformerForMaskedLM(config(name))
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_causal_stack_starts_as_language_models_do():
    """Radford 2019, 2.3: what is added to the residual stream starts smaller, by the root of how much is added."""
    sizes = {"hidden_size": 129, "intermediate_size": 257, "vocab_size": 211, "num_hidden_layers": 3}
    for rank in (None, 31):
        model = GreenformerForCausalLM(config(**sizes, rank=rank))
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding | LED) and not name.endswith(("score", "coder")):
                expected = 0.02 / 6**0.5 if name.endswith(("output", "down")) else 0.02
                torch.testing.assert_close(module.weight.std(), torch.tensor(expected), atol=0, rtol=0.1)
                assert getattr(module, "bias", None) is None
        assert isinstance(model.decoder.embedding.norm, nn.Identity)
    given = GreenformerForCausalLM(config(**sizes, initializer_range=0.07)).decoder.layers[0].attention.output
    torch.testing.assert_close(given.weight.std(), torch.tensor(0.07), atol=0, rtol=0.1)


@pytest.mark.parametrize("std", [None, 0.02])
@pytest.mark.parametrize("kind", [GreenformerModel, GreenformerForCausalLM])
def test_tokens_start_as_large_as_the_waves_beside_them(kind, std):
    model = kind(config(vocab_size=211, hidden_size=129, position="sinusoidal", initializer_range=std))
    word = model.get_input_embeddings()
    torch.testing.assert_close(word.weight.std(), torch.tensor(129**-0.5), atol=0, rtol=0.05)


def test_experts_that_a_checkpoint_lacks_are_drawn_and_others_stay(tmp_path, monkeypatch):
    saved = GreenformerForMaskedLM(config(feed_forward="switch"))
    saved.save_pretrained(tmp_path)
    plain = torch.empty_like

    def garbage(*given, **more):
        x = plain(*given, **more)
        return x.fill_(torch.nan) if x.is_floating_point() else x

    monkeypatch.setattr(torch, "empty_like", garbage)
    model = GreenformerForMaskedLM.from_pretrained(tmp_path, rank={"up": 4})
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    before, after = saved.state_dict(), model.state_dict()
    same = [name for name in after if name in before]
    assert any("experts" in name or "down" in name for name in same)
    assert all(after[name].equal(before[name]) for name in same)
