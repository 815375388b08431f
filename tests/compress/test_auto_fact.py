"""`auto_fact` beside that of `greenformer` 0.2.2: the same call, the same meaning of the rank, and its files are read.

Where the peer is installed, in a folder that GREENFORMERS_PEERS names, its own networks are read; else what is like
them.
"""

import inspect
import os
import sys
import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.pytorch_utils import Conv1D
from zoo import EVERYTHING, difference, inputs, network, outputs

import greenformers
from greenformers import LED, auto_fact
from greenformers.changes import LowRank
from greenformers.changes._units import ranks_of
from greenformers.compress.auto_fact import read_greenformer
from greenformers.lowrank.convolution import LowRankConv
from greenformers.lowrank.embedding import LowRankEmbedding
from greenformers.solve.units import units


class Pair(nn.Module):
    """What the peer puts in the place of a map: its names of weights, and what they do."""

    def __init__(self, dense: Any, rank: int) -> None:
        super().__init__()
        if isinstance(dense, nn.Conv1d | nn.Conv2d):
            encoder = type(dense)(dense.in_channels, rank, dense.kernel_size, dense.stride, dense.padding, bias=False)
            decoder = type(dense)(rank, dense.out_channels, 1, bias=dense.bias is not None)
            self.ced_unit = nn.Sequential(encoder, decoder)
        else:
            n, m = dense.weight.shape if isinstance(dense, Conv1D) else dense.weight.shape[::-1]
            self.led_unit = nn.Sequential(nn.Linear(n, rank, bias=False), nn.Linear(rank, m, dense.bias is not None))

    @property
    def weight(self) -> torch.Tensor:
        return self.led_unit[1].weight @ self.led_unit[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.led_unit(x) if hasattr(self, "led_unit") else self.ced_unit(x)


def like_the_peer(model: nn.Module, rank: int) -> nn.Module:
    """A network as the peer changes it, drawn at random."""
    for path, part in list(model.named_modules()):
        if path and type(part) in (nn.Linear, nn.Conv1d, nn.Conv2d, Conv1D) and min(part.weight.shape[:2]) > rank:
            parent = model.get_submodule(path.rpartition(".")[0])
            setattr(parent, path.rpartition(".")[2], Pair(part, rank))
    return model


@pytest.fixture(scope="module")
def peer() -> Callable[..., nn.Module] | None:
    folder = os.environ.get("GREENFORMERS_PEERS")
    if not folder:
        return None
    sys.path.append(folder)
    transformers.modeling_utils.Conv1D = Conv1D  # where it was in 2021
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from greenformer import auto_fact as theirs
    finally:
        sys.path.remove(folder)
    return theirs


def test_the_signature_is_the_peers() -> None:
    expected = {
        "module": inspect.Parameter.empty, "rank": inspect.Parameter.empty, "solver": "random", "num_iter": 10,
        "submodules": None, "deepcopy": False, "fact_led_unit": False,
    }  # fmt: skip
    parameters = inspect.signature(auto_fact).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == expected
    assert list(parameters) == list(expected)
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


# r_max of 20 x 30 is 12.
@pytest.mark.parametrize(
    ("rank", "expected"), [(0.5, 6), (0.99, 11), (0.05, None), (1, 1), (11, 11), (12, None), (7.0, 7)]
)
def test_the_rank_means_what_it_means_to_the_peer(peer: Any, rank: float, expected: int | None) -> None:
    def built() -> nn.Module:
        # The peer overlooks linear layers right under the root.
        return nn.Sequential(nn.Sequential(nn.Linear(20, 30), Conv1D(30, 20)))

    model = auto_fact(built(), rank, "svd")
    assert [getattr(part, "rank", None) for part in model[0]] == [expected, expected]
    if peer is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = peer(built(), rank, "svd")
        ranks = [len(part.led_unit[0].weight) if hasattr(part, "led_unit") else None for part in theirs[0]]
        assert ranks == [expected, expected]


@pytest.mark.parametrize("rank", [0, -1, 1.5, float("nan")])
def test_other_ranks_are_refused(rank: float) -> None:
    model = nn.Sequential(nn.Linear(20, 30))
    with pytest.raises(ValueError, match="rank must be a share"):
        auto_fact(model, rank)
    assert type(model[0]) is nn.Linear


def blocks() -> nn.ModuleDict:
    return nn.ModuleDict(
        {name: nn.Sequential(nn.Linear(20, 20), nn.Embedding(20, 20), nn.Conv1d(20, 20, 3)) for name in "ab"}
        | {"c": nn.Linear(20, 20)}
    )


@pytest.mark.parametrize("copied", [False, True])
def test_submodules(copied: bool) -> None:
    model = blocks()
    factorised = auto_fact(model, 0.5, submodules=[model["a"], model["c"]], deepcopy=copied)
    assert set(ranks_of(factorised)) == {"a.0", "a.2", "c"}  # embeddings are not of the peer's linear layers
    assert [type(part) for part in factorised["b"]] == [nn.Linear, nn.Embedding, nn.Conv1d]
    assert (factorised is model) != copied
    with pytest.raises(ValueError, match="none of the submodules"):
        auto_fact(model, 0.5, submodules=[nn.Linear(20, 20)])
    with pytest.raises(ValueError, match="at least one module"):
        auto_fact(model, 0.5, submodules=[])


def test_a_copy_leaves_the_network_alone() -> None:
    model = network("gpt2")
    before, state = repr(model), deepcopy(model.state_dict())
    factorised = auto_fact(model, 0.5, solver="svd", deepcopy=True)
    assert factorised is not model
    assert ranks_of(factorised)
    assert repr(model) == before
    assert all(value.equal(state[key]) for key, value in model.state_dict().items())
    assert getattr(model.config, "quantization_config", None) is None
    assert factorised.config.quantization_config.changes["low_rank"]["ranks"] == ranks_of(factorised)


@pytest.mark.parametrize("dense", [nn.Linear(20, 30), nn.Conv2d(20, 30, 3), nn.MultiheadAttention(20, 2)])
def test_one_map_by_itself(dense: nn.Module) -> None:
    unit = auto_fact(dense, 0.5, solver="svd")
    assert unit is not dense
    assert any(True for _ in units(nn.ModuleDict({"it": unit})))


def test_units_are_factorised_again_where_that_lowers_their_rank() -> None:
    model = blocks()
    auto_fact(model, 8, solver="svd")
    weights = {path: unit.weight.detach().clone() for path, unit in units(model)}
    # Without the flag they stay, as the peer's do; and there is nothing else.
    with pytest.raises(ValueError, match="nothing is selected"):
        auto_fact(model, 4, solver="svd")
    assert set(ranks_of(model).values()) == {8}
    auto_fact(model, 4, solver="svd", fact_led_unit=True, submodules=[model["a"]])
    assert ranks_of(model) == {"a.0": 4, "a.2": 4, "b.0": 8, "b.2": 8, "c": 8}
    auto_fact(model, 6, solver="svd", fact_led_unit=True)
    assert ranks_of(model) == {"a.0": 4, "a.2": 4, "b.0": 6, "b.2": 6, "c": 6}
    for path, unit in units(model):
        assert isinstance(unit, LED | LowRankConv)
        W = weights[path].flatten(1)
        energies = torch.linalg.svdvals(W.double()).square()
        error = (W - unit.weight.flatten(1)).norm() / W.norm()
        assert error.item() == pytest.approx((energies[unit.rank :].sum() / energies.sum()).sqrt().item(), rel=1e-4)


def test_units_that_share_their_factors_go_on_sharing_them() -> None:
    model = network("gpt2")
    greenformers.compress(model, LowRank(keep=0.5, select=EVERYTHING))
    auto_fact(model, 3, solver="svd", fact_led_unit=True)
    table, head = model.transformer.wte, model.lm_head
    assert isinstance(table, LowRankEmbedding)
    assert table.rank == head.rank == 3
    assert head.decoder.weight is table.decoder
    assert all(part.isfinite().all() for part in outputs(model, inputs("gpt2")))


def test_nothing_is_changed_where_it_raises() -> None:
    layer = nn.TransformerEncoderLayer(20, 2, 30, batch_first=True)
    model = nn.ModuleDict({"first": layer, "led": LED(20, 20, 8), "last": nn.Linear(20, 20)})
    with torch.no_grad():
        model["last"].weight[3, 4] = float("nan")
    parts = dict(model.named_modules())
    with pytest.raises(ValueError, match="last: the weight holds 1 values that are not finite"):
        auto_fact(model, 0.3, solver="svd", fact_led_unit=True)
    assert dict(model.named_modules()) == parts


def test_random_draws_as_torch_does() -> None:
    def drawn(seed: int) -> nn.Sequential:
        model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20))
        torch.manual_seed(seed)
        auto_fact(model, 0.5)
        return model

    first, same, other = drawn(1), drawn(1), drawn(2)
    assert first[0].encoder.weight.equal(same[0].encoder.weight)
    assert not first[0].encoder.weight.equal(other[0].encoder.weight)
    assert not first[0].encoder.weight.equal(first[1].encoder.weight)


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "vit"])
def test_the_peers_networks_are_read(peer: Any, name: str, tmp_path: Any) -> None:
    # The peer ties no weights, and leaves alone what is right under the root.
    more = {} if name == "vit" else {"tie_word_embeddings": False}
    theirs = network(name, **more)
    if peer is None:
        like_the_peer(theirs, 6)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peer(theirs, 6, solver="random")
    save_file({key: value.clone() for key, value in theirs.state_dict().items()}, tmp_path / "state.safetensors")
    model = network(name, **more)
    read_greenformer(model, load_file(tmp_path / "state.safetensors"))
    assert set(ranks_of(model).values()) == {6}
    batch = inputs(name)
    if peer is None or name != "t5":  # on T5 the peer's network does not run
        assert difference(outputs(model, batch), outputs(theirs, batch)) < 1e-6
    again = greenformers.load(greenformers.save(model, tmp_path / "ours"))
    assert difference(outputs(again, batch), outputs(model, batch)) == 0.0


def test_a_state_that_does_not_fit_is_refused() -> None:
    dense = nn.Sequential(nn.Linear(20, 30), nn.Conv1d(20, 30, 3))
    state = like_the_peer(deepcopy(dense), 6).state_dict()
    short = {key: value[..., :-1] if key.endswith("1.weight") else value for key, value in state.items()}
    cases = [
        (dense.state_dict(), "no led_unit or ced_unit"),
        ({f"body.{key}": value for key, value in state.items()}, "the network has no 'body.0'"),
        ({key: value for key, value in state.items() if key != "0.led_unit.1.weight"}, "0: '0.led_unit.1.weight'|0: "),
        ({key: value for key, value in state.items() if key != "0.led_unit.1.bias"}, "does not fit the network"),
        (state | {"0.led_unit.0.weight": torch.randn(25, 20)}, "0: rank must be in"),
        (short, "0: shape"),
        (state | {"2.weight": torch.randn(3)}, "does not fit the network"),
    ]
    for wrong, message in cases:
        model = deepcopy(dense)
        with pytest.raises(ValueError, match=message):
            read_greenformer(model, wrong)
        assert [type(part) for part in model] == [nn.Linear, nn.Conv1d]
        assert all(value.equal(dense.state_dict()[key]) for key, value in model.state_dict().items())
    with pytest.raises(ValueError, match="the network is a single layer"):
        read_greenformer(nn.Linear(20, 30), {key[2:]: value for key, value in state.items() if key.startswith("0.")})
    # One matrix over all groups is no grouped convolution: the peer's are wrong in any case.
    grouped = nn.Sequential(nn.Conv1d(20, 30, 3, groups=2))
    wrong = {"0.ced_unit.0.weight": torch.randn(6, 10, 3), "0.ced_unit.1.weight": torch.randn(30, 6, 1)}
    with pytest.raises(ValueError, match="0: shape"):
        read_greenformer(grouped, wrong)
