"""What the contract of a change is checked with: networks that it is made of, and all that it could change."""

import copy
import json
from collections.abc import Sequence
from typing import Any

import torch
from changes.rows import ROWS, Row
from models import sentences, tokenizer
from torch import nn
from transformers import PreTrainedModel
from zoo import inputs, network

import greenformers
from greenformers.changes import Change
from greenformers.checkpoint.description import Description
from greenformers.checkpoint.place import place
from greenformers.checkpoint.structure import structure

BY_NAME = {row.name: row for row in ROWS}
LARGER = {"bert": {"num_hidden_layers": 4, "num_attention_heads": 8}, "gpt2": {"n_layer": 4, "n_head": 8}}


def changed_model(name: str, changes: Sequence[Change]) -> PreTrainedModel:
    model = network(name, **LARGER.get(name, {}))
    apply(model, changes, name)
    return model


def apply(model: nn.Module, changes: Sequence[Change], name: str) -> Any:
    learns = any("training" in change.needs for change in changes)
    texts: dict[str, Any] = {"texts": sentences(40), "tokenizer": tokenizer(name), "length": 9} if learns else {}
    if any("calibration" in change.needs for change in changes):
        texts["calibration"] = [inputs(name)]
    return greenformers.compress(model, changes, example=inputs(name), **texts)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """All that a change could change."""
    config = getattr(model, "config", None)
    return {
        "weights": {name: x.clone() for name, x in model.state_dict().items()},
        "modules": [(path, type(module)) for path, module in model.named_modules(remove_duplicate=False)],
        "objects": {path: id(x) for path, x in model.named_parameters(remove_duplicate=False)},
        "trainable": {path: x.requires_grad for path, x in model.named_parameters()},
        "training": [module.training for module in model.modules()],
        "config": None if config is None else json.dumps(config.to_dict(), sort_keys=True, default=str),
        "described": structure(model).as_dict(),
    }


def check_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for part in before.keys() - {"weights"}:
        assert before[part] == after[part], part
    torch.testing.assert_close(before["weights"], after["weights"], rtol=0, atol=0)


def applies(row: Row, name: str) -> bool:
    return row.only is None or name in row.only


SHARED = ("prune", "shrink")
"""Changes with one budget for units of several kinds, of which a network may lose units of some kinds only."""


def check_shown(shown: Sequence[str], expected: Sequence[str], applied: Sequence[str]) -> None:
    """Check the changes that describe a network, beside those that describe the changes that were applied to it."""
    either = {name for change in applied if change in SHARED for name in BY_NAME[change].described}
    if not either:
        assert list(shown) == list(expected)
        return
    assert either & set(shown)
    assert set(expected) - either <= set(shown) <= set(expected)


def check_inverse(described: Description, model: PreTrainedModel) -> None:
    """What is placed by a description describes itself so, and has the parameters that the network has."""
    with torch.device("meta"):
        skeleton = type(model)(copy.deepcopy(model.config))
    assert place(skeleton, described) == []
    assert structure(skeleton).as_dict() == described.as_dict()
    skeleton.to(model.dtype)
    shapes = {key: (x.shape, x.dtype) for key, x in model.state_dict().items()}
    assert {key: (x.shape, x.dtype) for key, x in skeleton.state_dict().items()} == shapes
