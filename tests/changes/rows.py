"""One row a change: all that the tests of this folder need to hold it to the contract.

To add a change, append its row to ROWS.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from greenformers.changes import Attention, Change, Heal, Int8, Layers, LowRank, Neurons

TEXT = ("bert", "roberta", "distilbert", "electra", "gpt2", "llama")


@dataclass(frozen=True)
class Row:
    """A change as the tests make it, and what it claims.

    Attributes:
        change: Of tiny networks, of two layers and of inputs of seven tokens.
        only: Networks of the zoo that it can be made of; of the others it says why not. None for all.
        plain: Whether it can be made of a network that is not of transformers.
        shows: Whether anything of it is to be seen in the network, and to be described.
        flags: What one types for it after `greenformers compress MODEL`.
        hostile: Descriptions that must be refused.
    """

    change: Change
    flags: Sequence[str]
    only: Sequence[str] | None = None
    plain: bool = False
    shows: bool = True
    hostile: Sequence[Any] = field(default_factory=tuple)

    @property
    def name(self) -> str:
        """Of the change."""
        return self.change.name()


QUERY = "bert.encoder.layer.0.attention.self.query"
FIRST, SECOND = "bert.encoder.layer.0.intermediate.dense", "bert.encoder.layer.0.output.dense"
SELF = "bert.encoder.layer.0.attention.self"
SHAPE = {"heads": 2, "head_dim": 16, "max_len": 40, "causal": False, "cross": False, "layer": 0, "layers": 2}

ROWS = [
    Row(
        LowRank(keep=0.5, select=("*",)),
        ["--keep", "0.5", "--select", "*"],
        plain=True,
        hostile=[
            [], "low_rank", {"ranks": {}}, {"ranks": [1], "ties": []}, {"ranks": {QUERY: 0}, "ties": []},
            {"ranks": {QUERY: 10**9}, "ties": []}, {"ranks": {QUERY: True}, "ties": []},
            {"ranks": {"bert.encoder": 2}, "ties": []}, {"ranks": {QUERY: 2}, "ties": [[1]]},
            {"ranks": {QUERY: 2}, "ties": 3}, {"ranks": {QUERY: "2"}, "ties": [], "more": 1},
        ],
    ),
    Row(
        Attention(mechanism="sliding_window", options={"window": 2}),
        ["--attention", "sliding_window", "--attention-option", "window=2"],
        only=(*TEXT, "albert", "bart", "clip"),
        hostile=[
            [], 1, {SELF: {}}, {SELF: {"name": "sliding_window", "options": {}, "shape": {}}},
            {SELF: {"name": "os.system", "options": {}, "shape": SHAPE}},
            {SELF: {"name": "_dense", "options": {}, "shape": SHAPE}},
            {SELF: {"name": "sliding_window", "options": {"window": -1}, "shape": SHAPE}},
            {SELF: {"name": "sliding_window", "options": {"fast": 1}, "shape": SHAPE}},
            {SELF: {"name": "sliding_window", "options": {}, "shape": SHAPE | {"heads": -2}}},
        ],
    ),
    Row(Layers(keep=1), ["--keep-layers", "1"], only=TEXT, hostile=[
        {}, 3, [0], {"a": 3}, {"a": ["0"]}, {"a": [-1]}, {"a": [True]}, "0",
    ]),
    Row(
        Neurons(keep=0.75),
        ["--neurons", "0.75"],
        plain=True,
        hostile=[
            [], {}, {SECOND: 3}, {SECOND: {"first": [FIRST]}}, {SECOND: {"first": FIRST, "neurons": 8}},
            {SECOND: {"first": [FIRST], "neurons": 0}}, {SECOND: {"first": [FIRST], "neurons": True}},
            {SECOND: {"first": [3], "neurons": 8}}, {"bert.encoder": {"first": [FIRST], "neurons": 8}},
            {SECOND: {"first": ["bert.embeddings.word_embeddings"], "neurons": 8}},
        ],
    ),
    Row(
        Int8(),
        ["--int8"],
        plain=True,
        hostile=[
            [], {"paths": QUERY, "ties": []}, {"paths": [1], "ties": []}, {"paths": ["bert.encoder"], "ties": []},
            {"paths": [QUERY], "ties": 2}, {"paths": [QUERY], "ties": [[QUERY, 3]]}, {"paths": [QUERY]},
        ],
    ),
    Row(
        Heal(steps=2, batch_size=2),
        ["--heal", "2", "--heal-batch", "2"],
        only=(*TEXT, "albert"),
        shows=False,
        hostile=[{}, [], 1],
    ),
]  # fmt: skip
