"""Padding of any origin is no input of calibration: put in by the network, in another dimension, of a mask by place."""

import copy

import pytest
import torch
from transformers import (
    LongformerConfig,
    LongformerModel,
    SqueezeBertConfig,
    SqueezeBertModel,
    XLNetConfig,
    XLNetModel,
)
from zoo import network

from greenformers import Budget
from greenformers.solve.calibrate import covariances
from greenformers.solve.factorise import factorise
from greenformers.solve.loss import Movement, default, difference, own
from greenformers.solve.walk import sites
from greenformers.solve.watch import padding, trace, unpadded

SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def longformer() -> tuple[torch.nn.Module, list[str]]:
    model = LongformerModel(LongformerConfig(**SIZES, attention_window=8, max_position_embeddings=40, pad_token_id=1))
    return model.eval(), ["encoder.layer.0.attention.self.query", "encoder.layer.0.intermediate.dense"]


def xlnet() -> tuple[torch.nn.Module, list[str]]:
    model = XLNetModel(XLNetConfig(vocab_size=20, d_model=16, n_layer=1, n_head=2, d_inner=16))
    return model.eval(), ["layer.0.ff.layer_1", "layer.0.ff.layer_2"]


@pytest.mark.parametrize("make", [longformer, xlnet])
@pytest.mark.parametrize("lengths", [(5, 3), (5, 5), (3, 2, 3)])
def test_as_many_rows_are_read_as_there_are_tokens(make, lengths) -> None:
    model, paths = make()
    ids = torch.randint(3, 20, (len(lengths), max(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    batch = {"input_ids": ids, "attention_mask": mask.long()}
    read = []
    with padding(model) as masks:
        masks.begin(batch)
        hooks = [
            model.get_submodule(path).register_forward_hook(
                lambda _, args, __: read.append(len(unpadded(args[0], args[0].shape[:-1], masks.at(args[0]))))
            )
            for path in paths
        ]
        model(**batch)
    assert read == [sum(lengths)] * len(hooks)


def test_masks_and_labels_are_known_by_their_place_too() -> None:
    ids, mask = torch.randint(3, 53, (3, 7)), torch.arange(7) < torch.tensor([7, 3, 5])[:, None]
    named = {"input_ids": ids, "attention_mask": mask.long()}
    moved = []
    for batch in (named, (ids, mask.long())):
        model = network("bert", "BertModel")
        factorise(model, Budget(4, "rank"), solver="activation", calibration=[batch])
        moved.append(model.state_dict())
        moved.append({"": Movement()(model, batch)})
    for first, second in zip(moved[:2], moved[2:], strict=True):
        assert all(value.equal(second[name]) for name, value in first.items())
    writer = network("gpt2")
    assert default(writer, [ids]) is own
    assert own(writer, ids).equal(own(writer, {"input_ids": ids, "labels": ids}))
    with pytest.raises(ValueError, match="GPT2LMHeadModel gives no loss on this batch"):
        own(writer, {"inputs_embeds": torch.randn(2, 5, writer.config.hidden_size)})


@pytest.mark.parametrize(
    ("name", "cls"), [("bert", "BertForPreTraining"), ("electra", "ElectraForPreTraining"), ("bert", "BertForMaskedLM")]
)
def test_no_output_at_the_padding_is_looked_at(name: str, cls: str) -> None:
    model, mask = network(name, cls), torch.arange(7) < torch.tensor([7, 3, 5])[:, None]
    ids = torch.randint(3, 53, (3, 7))
    batches = [{"input_ids": ids.where(mask, filler), "attention_mask": mask.long()} for filler in (1, 40)]
    with torch.no_grad():
        first, second = (Movement()(model, batch) for batch in batches)
        torch.testing.assert_close(first, second)
        assert difference(model, batches[:1])(0) == 0.0
        moved = difference(model, batches)
        batches.reverse()
        assert moved(0) < 1e-6


def test_masks_of_choices_are_those_of_texts() -> None:
    model, lengths = network("bert", "BertForMultipleChoice"), torch.tensor([[7, 3], [5, 6]])
    mask = torch.arange(7) < lengths[..., None]
    batch = {"input_ids": torch.randint(3, 53, (2, 2, 7)), "attention_mask": mask.long()}
    (site,) = sites(model, "*.layer.0.*.query")
    (_, (seen,)) = next(iter(covariances(model, trace(model, [site], batch), [batch])))
    with padding(model) as masks:
        masks.begin(batch)
        assert masks.masks["attention_mask"].equal(mask.flatten(0, 1))
    x = model.bert.embeddings(batch["input_ids"].flatten(0, 1))[mask.flatten(0, 1)].double()
    torch.testing.assert_close(seen.mean, x.mean(0).detach(), rtol=1e-5, atol=1e-6)


def test_convolutions_over_texts_read_no_padding() -> None:
    mask, ids = torch.arange(7) < torch.tensor([7, 3, 5])[:, None], torch.randint(3, 20, (3, 7))
    groups = dict.fromkeys(["q_groups", "k_groups", "v_groups", "intermediate_groups", "output_groups"], 2)
    config = SqueezeBertConfig(**SIZES, **groups, embedding_size=16, max_position_embeddings=40, pad_token_id=1)
    dense, weights = SqueezeBertModel(config).eval(), []
    for filler in (1, 15):
        model, batch = copy.deepcopy(dense), {"input_ids": ids.where(mask, filler), "attention_mask": mask.long()}
        factorise(model, Budget(2, "rank"), solver="sequential_loss", select="conv", calibration=[batch])
        weights.append(model.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-4, atol=1e-5)
