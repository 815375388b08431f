"""Several outputs, padding of all shapes, and layers that some batches do not reach, in calibration."""

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import BatchEncoding
from zoo import inputs, network

import greenformers
from greenformers.changes import Bits, Heads, LowRank, Neurons, Sparse
from greenformers.checkpoint.structure import structure
from greenformers.solve import calibrate
from greenformers.solve.calibrate import covariances
from greenformers.solve.factorise import factorise
from greenformers.solve.loss import Movement, default, difference, own
from greenformers.solve.solve import solve
from greenformers.solve.walk import sites
from greenformers.solve.watch import trace
from greenformers.solve.which_layers import _cosines

SIZES = {
    "vocab_size": 53, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 44,
    "max_position_embeddings": 40,
}  # fmt: skip


def padded() -> tuple[list[Tensor], Tensor]:
    """Token ids, the same with other tokens at the padding, and the mask."""
    ids, mask = torch.randint(3, 53, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    mask[0, 3:] = 0
    return [ids, ids.where(mask.bool(), torch.tensor(9))], mask


def test_both_ends_of_an_answer_are_kept() -> None:
    torch.manual_seed(0)
    model = transformers.BertForQuestionAnswering(transformers.BertConfig(**SIZES)).eval()
    batches = [{"input_ids": torch.randint(3, 53, (8, 12))} for _ in range(4)]
    with torch.no_grad():
        before = model(**batches[0])
        greenformers.compress(model, 0.95, calibration=batches)
        after = model(**batches[0])
    for name in ("start_logits", "end_logits"):
        x, y = before[name], after[name]
        assert (x - y).norm() < 0.2 * (x - x.mean()).norm()


def test_a_layer_of_few_positions_counts_as_much_as_it_moves_the_output() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).mean(1))

    torch.manual_seed(0)
    model, batches = Pooled().eval(), [torch.randn(64, 50, 32) for _ in range(8)]
    traced, ratios = trace(model, sites(model), batches[0]), []
    for site, seen in covariances(model, traced, batches, loss=default(model, batches)):
        part, layer = solve(site, 8, "loss", seen), site.module
        weight, bias = layer.weight.data.clone(), layer.bias.data.clone()
        with torch.no_grad():
            before = [model(x) for x in batches]
            layer.weight.data, layer.bias.data = part.decoder[0] @ part.encoder[0], bias + part.shift(8).float()
            moved = sum(float((model(x) - y).square().sum()) for x, y in zip(batches, before, strict=True))
            layer.weight.data, layer.bias.data = weight, bias
        ratios.append(float(part.energies[8:].sum()) / moved)
    assert ratios[0] == pytest.approx(ratios[1], rel=0.5)


def test_ranks_of_embeddings_do_not_depend_on_the_unit_of_the_loss() -> None:
    batches, ranks = [inputs("bert", 4, 9)], []
    for unit in (1e-3, 1.0, 1e3):

        def loss(model: nn.Module, batch: dict[str, Tensor], unit: float = unit) -> Tensor:
            return unit * model(**batch).last_hidden_state.square().sum()

        done = factorise(
            network("bert", "BertModel"), 0.6, solver="loss", loss=loss, calibration=batches,
            select=("linear", "embedding"), multiple=1,
        )  # fmt: skip
        ranks.append([layer.rank for layer in done.layers])
    assert ranks[0] == ranks[1] == ranks[2]
    assert len(set(ranks[0])) > 1


def test_batches_of_any_size_say_the_same_of_an_embedding() -> None:
    ids = torch.randint(3, 53, (32, 12))

    def done(count: int, unit: float = 1.0) -> list[tuple[int | None, float | None, float | None]]:
        def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
            return unit * model(**batch).last_hidden_state.square().sum()

        given = factorise(
            network("bert", "BertModel"), 0.6, solver="loss", loss=loss, multiple=1,
            calibration=[{"input_ids": part} for part in ids.chunk(count)], select=("linear", "embedding"),
        )  # fmt: skip
        return [(layer.rank, layer.predicted, layer.achieved) for layer in given.layers]

    whole = done(1)
    assert [rank for rank, *_ in whole] == [rank for rank, *_ in done(8)]
    for (_, predicted, achieved), (_, rescaled, _) in zip(whole, done(1, 1e-3), strict=True):
        assert predicted == pytest.approx(rescaled, rel=1e-3)
        assert predicted is None or predicted == pytest.approx(achieved, rel=1e-2)


def test_batches_of_a_tokenizer_and_a_short_first_one() -> None:
    batches = [BatchEncoding({"input_ids": torch.randint(3, 53, (2, length))}) for length in (2, 9, 12)]
    for change in (Neurons(0.5), Heads(0.5)):
        model = network("bert", "BertModel")
        greenformers.compress(model, change, calibration=batches)
        assert structure(model).order == [change.name()]


def test_later_batches_reach_what_the_first_does_not() -> None:
    batches = [
        {"input_ids": torch.randint(3, 53, (1, n)), "decoder_input_ids": torch.randint(3, 53, (1, n))}
        for n in (3, 30, 30)
    ]
    left = [
        factorise(switching(), 0.5, solver="activation", multiple=1, calibration=given).unreached
        for given in (batches, batches[::-1])
    ]
    assert sorted(left[0]) == sorted(left[1])


def test_layers_that_share_a_weight_are_all_seen() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(20 * self.a(x).relu() + 5)

    torch.manual_seed(0)
    model = Two().eval()
    before = [layer.bias.clone() for layer in (model.a, model.b)]
    greenformers.compress(model, Bits(2, group=16), calibration=[torch.randn(8, 9, 32) + 1 for _ in range(4)])
    assert all((layer.bias - bias).abs().max() > 0 for layer, bias in zip((model.a, model.b), before, strict=True))


def test_distances_of_many_scores_are_kept_by_few() -> None:
    config = transformers.BertConfig(**SIZES | {"vocab_size": 5000})
    model, batches = transformers.BertForMaskedLM(config).eval(), [{"input_ids": torch.randint(3, 5000, (16, 20))}]
    with torch.no_grad():
        before = model(**batches[0]).logits
        risen = difference(model, batches)
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        moved = (model(**batches[0]).logits - before).square().sum().item()
        assert risen(0) == pytest.approx(moved, rel=0.1)


def switching() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.SwitchTransformersConfig(
        vocab_size=53, d_model=32, d_kv=16, d_ff=44, num_layers=2, num_decoder_layers=2, num_sparse_encoder_layers=2,
        num_sparse_decoder_layers=2, num_heads=2, num_experts=8, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.SwitchTransformersForConditionalGeneration(config).eval()


class Chooses(nn.Module):
    """A second layer for the rows of which the first gives a positive number, as an expert for what is routed to it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x)
        some = y[:, 0] > 0
        return y.index_put((some,), self.second(y[some])) if some.any() else y


def test_a_layer_that_some_batches_do_not_reach() -> None:
    model = Chooses().eval()
    batches = [torch.randn(50, 32) for _ in range(4)]
    batches[2] = batches[2][model.first(batches[2])[:, 0] < -0.3]
    greenformers.compress(model, Bits(4, group=16), calibration=batches)
    assert model(batches[0]).isfinite().all()
    with pytest.raises(ValueError, match="second: it reads other positions once the layers before it are changed"):
        greenformers.compress(Chooses(), LowRank(keep=0.4, solver="sequential", multiple=1), calibration=batches)


def test_experts_that_some_batches_do_not_reach() -> None:
    batches = [
        {"input_ids": torch.randint(3, 53, (1, 5)), "decoder_input_ids": torch.randint(3, 53, (1, 3))} for _ in range(4)
    ]
    model = switching()
    greenformers.compress(model, Bits(4), calibration=batches)
    with torch.no_grad():
        assert model(**batches[0]).logits.isfinite().all()
    with pytest.raises(ValueError, match="reads other positions once the layers before it are changed"):
        greenformers.compress(switching(), LowRank(keep=0.4, solver="sequential", multiple=1), calibration=batches)


def test_padding_of_an_encoder_with_a_decoder_says_nothing_of_its_layers() -> None:
    model, (rows, mask) = network("bart", encoder_layers=3), padded()
    targets = torch.randint(3, 53, (2, 5))
    first, second = (
        _cosines(
            model, [f"model.encoder.layers.{number}" for number in range(3)],
            [{"input_ids": ids, "attention_mask": mask, "decoder_input_ids": targets}], 1, lambda _: None,
        )
        for ids in rows
    )  # fmt: skip
    assert first == pytest.approx(second, abs=1e-6)


def test_padding_where_states_are_flat() -> None:
    config = transformers.OPTConfig(
        vocab_size=53, hidden_size=32, ffn_dim=44, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=40, word_embed_proj_dim=32,
    )  # fmt: skip
    model, (rows, mask) = transformers.OPTForCausalLM(config).eval(), padded()
    seen = []
    for ids in rows:
        batch = {"input_ids": ids, "attention_mask": mask}
        seen.append(
            {site.path: at[0].inputs for site, at in covariances(model, trace(model, sites(model), batch), [batch])}
        )
    assert any(path.endswith("fc2") for path in seen[0])
    for path, C in seen[0].items():
        torch.testing.assert_close(C, seen[1][path])


def test_labels_tell_the_padding_of_a_decoder() -> None:
    model, (rows, mask) = network("bart"), padded()
    labels = rows[0].masked_fill(mask == 0, -100)
    batch = {"input_ids": rows[0], "labels": labels}
    sums = dict(covariances(model, trace(model, sites(model), batch), [batch]))
    by_path = {site.path: seen[0].inputs for site, seen in sums.items()}
    batch = {"input_ids": rows[0], "labels": labels, "decoder_attention_mask": mask}
    again = {site.path: seen[0].inputs for site, seen in covariances(model, trace(model, sites(model), batch), [batch])}
    path = "model.decoder.layers.0.self_attn.q_proj"
    torch.testing.assert_close(by_path[path], again[path])


def test_probes_do_not_ask_for_outputs_at_the_padding() -> None:
    model, batch, felt = network("bert"), inputs("bert"), []
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][0, 4:] = 0
    model.cls.register_forward_hook(lambda _, __, out: felt.append(out) or out.retain_grad())
    Movement(0)(model, batch).backward()
    assert felt[0].grad[0, 4:].abs().max() == 0
    assert felt[0].grad[0, :4].abs().max() > 0


def test_losses_of_half_precision_are_summed_in_float32() -> None:
    model = network("bart").bfloat16()
    batch = {"input_ids": torch.randint(5, 50, (8, 40), generator=torch.Generator().manual_seed(0))}
    batch["labels"] = batch["input_ids"].clone()
    batch["labels"][0, 30:] = -100
    positions = batch["labels"] != -100
    with torch.no_grad():
        logits = model(**batch).logits.float()
        expected = torch.nn.functional.cross_entropy(logits[positions], batch["labels"][positions], reduction="sum")
        torch.testing.assert_close(own(model, batch), expected)


def test_a_mask_of_samples_is_none_of_states() -> None:
    model, batch = network("wav2vec2", "Wav2Vec2Model"), inputs("wav2vec2")
    batch["attention_mask"] = torch.ones_like(batch["input_values"], dtype=torch.long)
    assert Movement(0)(model, batch).isfinite()


def test_weights_that_are_no_numbers_are_not_pruned_away() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model[0].weight.data[2, 3] = float("nan")
    with pytest.raises(ValueError, match="0: the weight holds values that are not finite"):
        greenformers.compress(model, Sparse(by="magnitude"))
    assert model[0].weight[2, 3].isnan()


def test_statistics_are_dropped_before_those_of_other_layers_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[dict[object, Tensor]] = []
    plain = calibrate._collect

    def collect(*given: object) -> dict[object, Tensor]:
        assert not any(held)
        held.append(plain(*given))
        return held[-1]

    monkeypatch.setattr(calibrate, "_collect", collect)
    model, batch = network("bert"), inputs("bert")
    for _ in covariances(model, trace(model, sites(model), batch), [batch], memory=0):
        pass
    assert len(held) > 2


def test_a_loss_that_is_a_sum_counts_once() -> None:
    model = network("wav2vec2", ctc_loss_reduction="sum")
    batch = inputs("wav2vec2") | {"labels": torch.randint(1, 31, (2, 4))}
    assert own(model, batch).item() == pytest.approx(model(**batch).loss.item())
