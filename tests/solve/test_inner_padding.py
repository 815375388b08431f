"""Padding that a network puts in itself, or that stands in another dimension, is no input of calibration."""

import pytest
import torch
from transformers import LongformerConfig, LongformerModel, XLNetConfig, XLNetModel

from greenformers.solve.watch import padding, unpadded

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
