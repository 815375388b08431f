"""One row a change: all that the tests of this folder need to hold it to the contract.

To add a change, append its row to ROWS.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zoo import ZOO

from greenformers.changes import (
    Attention,
    Bfloat16,
    Bits,
    Change,
    Exits,
    Heads,
    Heal,
    Int8,
    Layers,
    LowRank,
    Narrow,
    Neurons,
    Product,
    Prune,
    Shrink,
    Sparse,
    Upcycle,
    Width,
)

TEXT = ("bert", "roberta", "distilbert", "electra", "gpt2", "llama")


@dataclass(frozen=True)
class Row:
    """A change as the tests make it, and what it claims.

    Attributes:
        change: Of tiny networks, of two layers and of inputs of seven tokens.
        only: Networks of the zoo that it can be made of; of the others it says why not. None for all.
        plain: Whether it can be made of a network that is not of transformers.
        shows: Names of the changes that describe what is to be seen of it in the network; by default its own.
        hides: Names of changes before it that are to be seen no longer: int8 weights hold zeros as any other numbers.
        flags: What one types for it after `greenformers compress MODEL`.
        hostile: Descriptions that must be refused.
    """

    change: Change
    flags: Sequence[str]
    only: Sequence[str] | None = None
    plain: bool = False
    shows: Sequence[str] | None = None
    hides: Sequence[str] = ()
    hostile: Sequence[Any] = field(default_factory=tuple)

    @property
    def name(self) -> str:
        """Of the change."""
        return self.change.name()

    @property
    def described(self) -> list[str]:
        """Names of the changes that describe it."""
        return [self.name] if self.shows is None else list(self.shows)


QUERY = "bert.encoder.layer.0.attention.self.query"
FIRST, SECOND = "bert.encoder.layer.0.intermediate.dense", "bert.encoder.layer.0.output.dense"
OUTPUT = "bert.encoder.layer.0.attention.output.dense"
SIZES = {"first": {QUERY: 16}, "second": 16, "sizes": {"num_attention_heads": 1}}
EXPERTS = {"first": [FIRST], "experts": 3, "k": 2}
NARROW = {"first": {FIRST: 8}, "second": 8, "sizes": {}}
COORDINATES = {"width": 24, "dimensions": {"weight": [1]}, "bias": True, "eps": None}
STUDENT = {"hidden": [32, 24], "heads": [2, 2], "head_dim": [16, 12], "neurons": [44, 32], "layers": None}
PACKED = {
    "bits": 3,
    "per": "group",
    "group": 16,
    "symmetric": False,
    "scaled": False,
    "rank": 0,
    "rounds_inputs": False,
}
WRONG: list[dict[str, Any]] = [
    {"bits": 0}, {"bits": 9}, {"bits": True}, {"per": "layer"}, {"group": 0}, {"group": "8"}, {"scaled": 1},
    {"symmetric": None}, {"more": 1}, {"rank": -1}, {"rank": 10**9},
    {"rounds_inputs": 1}, {"rounds_inputs": True},
]  # fmt: skip
CODED = {"block": 4, "centroids": 16}
UNCODED: list[dict[str, Any]] = [
    {"block": 0}, {"block": "4"}, {"block": True}, {"centroids": 257}, {"centroids": 0}, {"more": 1},
]  # fmt: skip
STACK = "bert.encoder.layer"
LEAVES = {
    "after": [0], "width": 32, "classes": None, "head": None, "by": "error", "threshold": 0.5, "patience": 1,
    "shared": [],
}  # fmt: skip
STAY: list[dict[str, Any]] = [
    {"after": []}, {"after": [1]}, {"after": [0, 0]}, {"after": ["0"]}, {"after": [True]}, {"after": 0}, {"width": 33},
    {"width": True}, {"classes": 2}, {"classes": 1, "head": "cls"}, {"classes": 3, "head": "cls", "by": "entropy"},
    {"head": "cls"}, {"by": "confidence"}, {"by": None}, {"threshold": 2}, {"threshold": "0"}, {"threshold": None},
    {"patience": 0}, {"shared": "0"}, {"shared": [0]}, {"more": 1},
]  # fmt: skip
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
        Narrow(hidden=24),
        ["--narrow", "24"],
        only=("bert", "roberta", "distilbert", "gpt2", "llama", "albert", "t5", "bart", "vit"),
        hostile=[
            [], {}, 3, {"hidden": [24, 32]}, STUDENT | {"more": 1}, STUDENT | {"hidden": 24},
            STUDENT | {"heads": [2]}, STUDENT | {"neurons": [True, 2]}, STUDENT | {"neurons": [-1, 2]},
            STUDENT | {"layers": [0]}, STUDENT | {"layers": {"a": []}}, STUDENT | {"layers": {"a": ["0"]}},
        ],
    ),
    Row(
        Width(keep=0.75, by="deletion"),
        ["--width", "0.75", "--width-by", "deletion"],
        only=tuple(name for name in ZOO if name not in ("wav2vec2", "whisper", "clip")),
        hostile=[
            [], {}, 3, {QUERY: 24}, {QUERY: {"width": 24}}, {QUERY: COORDINATES | {"width": 0}},
            {QUERY: COORDINATES | {"width": True}}, {QUERY: COORDINATES | {"width": 33}},
            {QUERY: COORDINATES | {"dimensions": {"weight": [2]}}},
            {QUERY: COORDINATES | {"dimensions": {"weight": 1}}},
            {QUERY: COORDINATES | {"dimensions": {"training": [0]}}}, {QUERY: COORDINATES | {"dimensions": [1]}},
            {QUERY: COORDINATES | {"eps": 1e-5}}, {QUERY: COORDINATES | {"eps": "1"}},
            {QUERY: COORDINATES | {"bias": 1}},
            {"bert.encoder": COORDINATES}, {QUERY: COORDINATES | {"more": 1}},
            {"bert.embeddings.word_embeddings": COORDINATES | {"bias": True}},
        ],
    ),
    Row(
        Heads(keep=0.5),
        ["--heads", "0.5"],
        only=tuple(name for name in ZOO if name != "t5"),
        plain=True,
        hostile=[
            [], {}, {SECOND: 3}, {OUTPUT: {"first": {QUERY: 16}}}, {OUTPUT: SIZES | {"second": 0}},
            {OUTPUT: SIZES | {"first": QUERY}}, {OUTPUT: SIZES | {"first": {QUERY: True}}},
            {OUTPUT: SIZES | {"first": {}}}, {OUTPUT: SIZES | {"sizes": {"training": 1}}},
            {OUTPUT: SIZES | {"sizes": {"num_heads": 1}}}, {"bert.encoder": SIZES},
            {OUTPUT: SIZES | {"first": {"bert.embeddings.word_embeddings": 8}}},
        ],
    ),
    Row(
        Neurons(keep=0.75),
        ["--neurons", "0.75"],
        plain=True,
        hostile=[
            [], {}, {SECOND: 3}, {SECOND: {"first": {FIRST: 8}}}, {SECOND: NARROW | {"first": FIRST}},
            {SECOND: NARROW | {"second": 0}}, {SECOND: NARROW | {"second": True}},
            {SECOND: NARROW | {"first": [3]}}, {"bert.encoder": NARROW}, {SECOND: NARROW | {"sizes": [1]}},
            {SECOND: NARROW | {"first": {"bert.embeddings.word_embeddings": 8}}},
        ],
    ),
    Row(
        Prune(keep=0.45),
        ["--prune", "0.45"],
        only=tuple(name for name in ZOO if name != "t5"),
        plain=True,
        shows=("heads", "neurons"),
        hostile=[{}, [], 1],
    ),
    Row(
        Shrink(keep=0.45),
        ["--shrink", "0.45"],
        only=tuple(name for name in ZOO if name != "t5"),
        plain=True,
        shows=("heads", "neurons", "low_rank"),
        hostile=[{}, [], 1],
    ),
    Row(
        Upcycle(experts=3, every=1),
        ["--upcycle", "3", "--upcycle-every", "1"],
        hostile=[
            [], {}, 3, {SECOND: 3}, {SECOND: {"first": [FIRST]}}, {SECOND: EXPERTS | {"experts": 0}},
            {SECOND: EXPERTS | {"experts": 10**9}}, {SECOND: EXPERTS | {"experts": True}},
            {SECOND: EXPERTS | {"k": 4}}, {SECOND: EXPERTS | {"k": "1"}}, {SECOND: EXPERTS | {"first": FIRST}},
            {SECOND: EXPERTS | {"first": []}}, {SECOND: EXPERTS | {"first": [SECOND]}},
            {SECOND: EXPERTS | {"first": [FIRST, FIRST]}}, {SECOND: EXPERTS | {"first": [QUERY]}},
            {SECOND: EXPERTS | {"first": ["bert.encoder"]}}, {"bert.encoder": EXPERTS}, {SECOND: EXPERTS | {"more": 1}},
        ],
    ),
    Row(
        Sparse(keep=0.5),
        ["--sparse", "0.5"],
        plain=True,
        hostile=[
            [], {}, 3, {QUERY: "2"}, {QUERY: True}, {QUERY: -1}, {QUERY: 10**9}, {"bert.encoder": 3},
            {"bert.embeddings.word_embeddings": 3},
        ],
    ),
    Row(
        Int8(),
        ["--int8"],
        plain=True,
        hides=("sparse",),
        hostile=[
            [], {"paths": QUERY, "ties": []}, {"paths": [1], "ties": []}, {"paths": ["bert.encoder"], "ties": []},
            {"paths": [QUERY], "ties": 2}, {"paths": [QUERY], "ties": [[QUERY, 3]]}, {"paths": [QUERY]},
        ],
    ),
    Row(
        Product(block=4, centroids=16),
        ["--product", "4", "--product-centroids", "16"],
        hides=("sparse",),
        hostile=[
            [], {}, {"forms": {QUERY: CODED}}, {"forms": [QUERY], "ties": []}, {"forms": {}, "ties": []},
            *({"forms": {QUERY: CODED | wrong}, "ties": []} for wrong in UNCODED),
            {"forms": {QUERY: 3}, "ties": []}, {"forms": {"bert.encoder": CODED}, "ties": []},
            {"forms": {QUERY: CODED}, "ties": 3}, {"forms": {QUERY: CODED}, "ties": [[1]]},
            {"forms": {QUERY: CODED, FIRST: CODED}, "ties": [[QUERY, FIRST]]},
        ],
    ),
    Row(
        Bits(bits=3, group=16),
        ["--bits", "3", "--bits-group", "16"],
        plain=True,
        hides=("sparse",),
        hostile=[
            [], {}, {"forms": {QUERY: PACKED}}, {"forms": [QUERY], "ties": []}, {"forms": {}, "ties": []},
            *({"forms": {QUERY: PACKED | wrong}, "ties": []} for wrong in WRONG),
            {"forms": {QUERY: 3}, "ties": []}, {"forms": {"bert.encoder": PACKED}, "ties": []},
            {"forms": {QUERY: PACKED}, "ties": 3}, {"forms": {QUERY: PACKED}, "ties": [[1]]},
            {"forms": {QUERY: PACKED, FIRST: PACKED}, "ties": [[QUERY, FIRST]]},
        ],
    ),
    Row(
        Bfloat16(),
        ["--bf16"],
        only=tuple(name for name in ZOO if name not in ("wav2vec2", "whisper")),
        shows=(),
        hostile=[{}, [], 1],
    ),
    Row(
        Heal(steps=2, batch_size=2),
        ["--heal", "2", "--heal-batch", "2"],
        only=(*TEXT, "albert"),
        shows=(),
        hostile=[{}, [], 1],
    ),
    Row(
        Exits(steps=2, batch_size=2, lose=0.5),
        ["--exits", "2", "--exits-batch", "2", "--exits-lose", "0.5"],
        only=("bert", "roberta", "distilbert", "electra"),
        hostile=[
            [], {}, 3, {STACK: {}}, {STACK: 3}, {"bert.encoder": LEAVES}, {f"{STACK}.0": LEAVES},
            *({STACK: LEAVES | wrong} for wrong in STAY),
        ],
    ),
]  # fmt: skip
