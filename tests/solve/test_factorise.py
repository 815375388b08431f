"""`factorise`: budgets, selections, and what it refuses."""

from collections.abc import Sequence

import pytest
import torch
from mixed import all_of, chain, mixed, rows, tokens
from torch import nn
from zoo import inputs, network

import greenformers
from greenformers import LED, Budget
from greenformers.changes._units import ranks_of
from greenformers.lowrank.factorize import CALIBRATED, SOLVERS, SPECTRAL, Statistics
from greenformers.lowrank.rank import largest
from greenformers.solve.factorise import factorise
from greenformers.solve.solve import spectrum_of
from greenformers.solve.walk import Site, sites

UNIFORM = Budget(0.6, "uniform")


def weights(model: nn.Module, paths: Sequence[str]) -> int:
    """Of the linear layers at these paths, without biases."""
    parts = [model.get_submodule(path).named_parameters() for path in paths]
    return sum(parameter.numel() for part in parts for name, parameter in part if name != "bias")


@pytest.mark.parametrize(("share", "solver"), [(0.35, "svd"), (0.5, "activation"), (0.97, "svd")])
def test_a_share_of_the_parameters_is_met_and_never_exceeded(share: float, solver: str) -> None:
    model = network("bert")
    report = factorise(model, share, solver=solver, calibration=[inputs("bert")], multiple=4)
    paths = [layer.path for layer in report.layers]
    assert report.before == weights(network("bert"), paths)
    assert report.after == weights(model, paths) <= share * report.before
    # What is left is less than one more step of any map would have cost, from the lowest slack on.
    steps = [8 * sum(layer.shape[1:]) for layer in report.layers]
    assert report.after > share * report.before - max(
        *steps, *(layer.shape[1] * layer.shape[2] for layer in report.layers)
    )
    assert report.model_after == sum(parameter.numel() for parameter in model.parameters())
    assert report.model_before - report.model_after == report.before - report.after
    assert {layer.rank for layer in report.layers} <= {None, 4, 8, 12, 16}
    assert f"{100 * report.parameter_share:.1f} %" in str(report)


def test_all_that_there_is_leaves_all_dense_and_too_little_is_refused() -> None:
    model = chain(24, 30, 20)
    report = factorise(model, 1.0)
    assert report.parameter_share == 1
    assert not ranks_of(model)
    with pytest.raises(ValueError, match=r"the budget must be at least 0\.\d+ of the dense layers'"):
        factorise(model, 0.01)
    assert not ranks_of(model)


@pytest.mark.parametrize(
    ("solver", "budget"),
    [
        *((solver, budget) for solver in SOLVERS for budget in (UNIFORM, Budget(11, "rank"))),
        ("svd", Budget(1, "uniform")), ("svd", Budget(10**6, "rank")),
    ],
)  # fmt: skip
def test_no_map_gets_larger(solver: str, budget: Budget) -> None:
    model = mixed()
    report = all_of(model, budget, solver=solver, calibration=tokens())
    assert len(report.layers) == 10
    for layer in report.layers:
        assert layer.parameters_after <= layer.parameters_before
        assert (layer.rank is None) == (layer.parameters_after == layer.parameters_before)
        assert layer.rank is None or weights(model, [layer.path]) == layer.parameters_after
    assert model(tokens()[0]).isfinite().all()


class Uneven(nn.Module):
    """One map at every position, one at a tenth of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.often, self.seldom = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.seldom(self.often(x)[:, ::10])


def test_flops_count_the_positions() -> None:
    example = torch.randn(2, 30, 32)
    positions = {"often": 60, "seldom": 6}
    sizes = {}
    for of in ("parameters", "flops"):
        model = Uneven()
        report = factorise(model, Budget(0.4, of=of), example=example, multiple=1)
        sizes[of] = {layer.path: layer.parameters_after for layer in report.layers}
    spent = sum(positions[path] * size for path, size in sizes["flops"].items())
    assert 0.36 * 66 * 1024 < spent <= 0.4 * 66 * 1024
    assert sizes["flops"]["often"] < sizes["parameters"]["often"]
    assert sizes["flops"]["seldom"] > sizes["parameters"]["seldom"]
    with pytest.raises(ValueError, match="a budget of flops and only_if_faster need an example batch"):
        factorise(Uneven(), Budget(0.5, of="flops"))


def test_latency_is_measured_once_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, tuple[int, ...]]] = []

    def measure(site: Site, ranks: Sequence[int], shapes: Sequence[torch.Size]) -> dict[int | None, float]:
        asked.append((site.path, tuple(shapes[0])))
        return {None: 10.0} | {rank: 2.0 + 0.3 * rank for rank in ranks}

    monkeypatch.setattr("greenformers.solve.speed.measure", measure)
    model = chain(48, 48, 48, 40)
    report = factorise(model, Budget(0.7, of="latency"), example=torch.randn(5, 48), multiple=1)
    assert asked == [("0", (5, 48)), ("4", (5, 48))]  # the second is like the first
    spent = sum(10.0 if layer.rank is None else 2.0 + 0.3 * layer.rank for layer in report.layers)
    assert 20 < spent <= 21


def test_only_if_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(site: Site, ranks: Sequence[int], _: object) -> dict[int | None, float]:
        return {None: 10.0} | dict.fromkeys(ranks, 5.0 if site.path == "2" else 10.0)

    monkeypatch.setattr("greenformers.solve.factorise.measure", measure)
    model = chain(48, 48, 48, 40)
    report = factorise(model, 0.5, example=torch.randn(5, 48), only_if_faster=True)
    assert [layer.rank is None for layer in report.layers] == [True, False, True]
    assert list(ranks_of(model)) == ["2"]


def test_latency_of_this_machine() -> None:
    model = chain(64, 64)
    report = factorise(model, Budget(1.0, of="latency"), example=torch.randn(512, 64), multiple=8)
    assert report.layers[0].rank is None or report.layers[0].rank % 8 == 0


def test_ranks_by_one_layer_at_a_time() -> None:
    dense = chain(40, 60, 30)
    spectra = [torch.linalg.svdvals(dense[i].weight.detach().double()).square() for i in (0, 2)]

    def ranks(budget: Budget, multiple: int | None = 1) -> list[int | None]:
        model = chain(40, 60, 30)
        return [layer.rank for layer in factorise(model, budget, multiple=multiple).layers]

    assert ranks(Budget(0.5, "uniform")) == [round(0.5 * m * n / (m + n)) for m, n in ((60, 40), (30, 60))]
    assert ranks(Budget(0.5, "uniform"), 4) == [12, 8]  # nearest to 12 and 10, which Python rounds to even
    assert ranks(Budget(0.5, "uniform"), None) == [16, 8]  # 12 / 8 too
    by_energy = [int((s.cumsum(0) < 0.6 * s.sum()).sum()) + 1 for s in spectra]
    assert ranks(Budget(0.6, "energy")) == by_energy
    for rank, least in zip(ranks(Budget(0.4, "energy"), 8), ranks(Budget(0.4, "energy")), strict=True):
        assert rank == -(-least // 8) * 8  # no weight keeps less than was asked for
    assert ranks(Budget(1.5, "stable")) == [round(1.5 * (s.sum() / s[0]).item()) for s in spectra]
    assert ranks(Budget(float("inf"), "stable")) == [None, None]
    # A rank that is named is that rank, unless a multiple is named too; over the limit a map stays dense.
    assert ranks(Budget(13, "rank"), None) == [13, 13]
    assert ranks(Budget(13, "rank"), 8) == [16, 16]
    assert ranks(Budget(21, "rank")) == [21, None]
    assert largest(30, 60) == 19


@pytest.mark.parametrize(
    ("amount", "how", "of", "message"),
    [
        (0.0, "hull", "parameters", "share to keep must be in"),
        (1.01, "uniform", "parameters", "share to keep must be in"),
        (float("nan"), "energy", "parameters", "share to keep must be in"),
        (0.5, "rank", "parameters", "rank must be a whole number"),
        (2.5, "rank", "parameters", "rank must be a whole number"),
        (float("inf"), "rank", "parameters", "rank must be a whole number"),
        (-1, "stable", "parameters", "multiple of the stable rank must be positive"),
        (0.5, "hulls", "parameters", "a budget is one of hull, uniform"),
        (0.5, "hull", "memory", "a budget is spent of parameters, flops, latency"),
        (8, "rank", "flops", "a budget of flops is a share of all weights together, not 'rank'"),
    ],
)
def test_a_budget_that_means_nothing(amount: float, how: str, of: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Budget(amount, how, of)


def test_selections() -> None:
    def chosen(select: object) -> set[str]:
        return {layer.path for layer in all_of(mixed(), UNIFORM, select=select).layers}

    linear = {"frozen", "head", "body.layers.0.linear1", "body.layers.0.linear2"}
    attention = {f"body.layers.0.self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    assert chosen(None) == chosen("linear") == linear | attention
    assert chosen("conv") == {"conv"}
    assert chosen(["embedding", "*.linear[12]"]) == {"table", "body.layers.0.linear1", "body.layers.0.linear2"}
    assert chosen("*.[qk]_proj") == {f"body.layers.0.self_attn.{name}" for name in ("q_proj", "k_proj")}
    assert chosen(lambda path, module: path == "head" or isinstance(module, nn.Conv1d)) == {"head", "conv"}
    for select, message in [
        (
            "*.quary",
            r"'\*.quary' matches none of the 10 weights; kinds are linear, conv, embedding, experts, paths are",
        ),
        (["linear", "nothing"], "'nothing' matches none"),
        (lambda *_: False, "nothing is selected: of the network's 10 weights none fits"),
        ([], "nothing is selected"),
    ]:
        with pytest.raises(ValueError, match=message):
            chosen(select)


def test_what_shares_a_weight_comes_along() -> None:
    model = network("gpt2")
    report = factorise(model, 0.5, select="embedding")
    assert [(layer.path, layer.tied) for layer in report.layers] == [
        ("transformer.wte", ("lm_head",)),
        ("transformer.wpe", ()),
    ]
    assert set(ranks_of(model)) == {"transformer.wte", "lm_head", "transformer.wpe"}
    # By default it is the linear layers that no embedding shares.
    assert "lm_head" not in {layer.path for layer in factorise(network("gpt2")).layers}

    class Backwards(nn.Module):
        """The head first, and a padding row."""

        def __init__(self) -> None:
            super().__init__()
            self.head, self.table = nn.Linear(16, 40, bias=False), nn.Embedding(40, 16, padding_idx=3)
            self.head.weight = self.table.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(ids))

    model = Backwards()
    (layer,) = all_of(model, 0.5, solver="activation", calibration=[torch.arange(40)[None]]).layers
    assert (layer.path, layer.tied) == ("table", ("head",))
    assert model.head.decoder.weight is model.table.decoder
    assert not model.table(torch.tensor([3])).any()


def test_ranks_by_any_path_of_a_weight() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    model[1].weight = model[0].weight
    with pytest.raises(ValueError, match="ranks are given by the paths of layers, and there is none at '\\*'"):
        factorise(model, {"*": 4})
    with pytest.raises(ValueError, match="'1' shares its weight with another layer: give one rank for both"):
        factorise(model, {"0": 4, "1": 3})
    factorise(model, {"1": 4})
    assert ranks_of(model) == {"0": 4, "1": 4}


def test_groups_whose_gradients_span_fewer_directions_than_those_of_others() -> None:
    model = nn.Sequential(nn.Conv1d(10, 6, 1, groups=2))
    (site,) = sites(model, "conv")
    felt = [torch.diag(torch.tensor([1.0, 0.0, 0.0])), torch.eye(3)]
    seen = [Statistics(inputs=torch.eye(5), gradients=G) for G in felt]
    energies = spectrum_of(site, "loss", seen)
    expected = sum((G @ W @ W.T).trace().item() for G, W in zip(felt, site.matrices(), strict=True))
    assert energies.sum().item() == pytest.approx(expected)
    assert len(energies) == 3


def test_what_has_no_low_rank_form_is_left_alone() -> None:
    class Attention(nn.MultiheadAttention):
        """Perhaps it computes something else."""

    model = nn.ModuleDict({"own": Attention(16, 2), "map": nn.Linear(16, 16), "tall": nn.Linear(16, 1)})
    model["normed"] = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
    report = all_of(model, 0.5)
    assert [(layer.path, layer.rank is None) for layer in report.layers] == [("map", False), ("tall", True)]
    with pytest.raises(ValueError, match="nothing is selected: of the network's 1 weights none fits"):
        all_of(model, 0.5, select=lambda path, _: path == "normed")
    with pytest.raises(ValueError, match="nothing is selected"):
        factorise(nn.Linear(16, 16))


@pytest.mark.parametrize("solver", CALIBRATED)
def test_data_that_does_not_serve(solver: str) -> None:
    def refused(message: str, **options: object) -> None:
        model = chain(24, 30, 20)
        with pytest.raises(ValueError, match=message):
            factorise(model, UNIFORM, solver=solver, **options)  # type: ignore[arg-type]
        assert not ranks_of(model)

    bad = rows(24)
    bad[1][3, 5] = float("nan")
    refused("not finite on the calibration data|the loss on batch 1 of the calibration data is nan", calibration=bad)
    refused(f"solver '{solver}' needs calibration data, at least one batch")
    refused(f"solver '{solver}' needs calibration data, at least one batch", calibration=[])
    refused("calibration must be batches, got a Tensor: put one batch in a list", calibration=rows(24)[0])
    refused("calibration must be batches, got a dict", calibration={"input": rows(24)[0]})
    refused("a batch must be a mapping, a sequence or a tensor, got a int", calibration=[3])
    refused("a batch must be a mapping, a sequence or a tensor, got a str", calibration=["text"])
    model = Uneven()
    model.never = nn.Linear(32, 32)
    batches = [torch.randn(2, 30, 32)]
    with pytest.raises(ValueError, match="the data does not reach 'never', one of 1 such layers that are selected"):
        factorise(model, UNIFORM, solver=solver, calibration=batches, select=["linear"])
    assert not ranks_of(model)


@pytest.mark.parametrize("solver", CALIBRATED)
def test_what_the_data_does_not_reach_stays_dense(solver: str) -> None:
    """One layer that only another kind of input calls, and nothing of a network could be calibrated."""
    model = Uneven()
    model.never = nn.Linear(32, 32)
    done = factorise(model, UNIFORM, solver=solver, calibration=[torch.randn(2, 30, 32)])
    assert done.unreached == ["never"]
    assert type(model.never) is nn.Linear
    assert ranks_of(model)


def test_other_values_are_refused() -> None:
    for options, message in [
        ({"solver": "SVD"}, "solver must be one of svd, randomized"),
        ({"multiple": 0}, "multiple must be at least 1, got 0"),
        ({"multiple": -8}, "multiple must be at least 1, got -8"),
        ({"budget": 0}, "share to keep"),
        ({"budget": Budget(0.5), "solver": "nmf"}, "solver 'nmf' has no spectrum for a budget 'hull'"),
        ({"budget": Budget(0.5, "energy"), "solver": "random"}, "no spectrum for a budget 'energy'"),
    ]:
        with pytest.raises(ValueError, match=message):
            factorise(chain(24, 30, 20), **options)  # type: ignore[arg-type]


def test_it_can_be_called_again() -> None:
    model = chain(24, 30, 20)
    factorise(model, 0.5, select="0", multiple=1)
    factorise(model, 0.5, select="2", multiple=1)
    assert all(isinstance(model[i], LED) for i in (0, 2))
    with pytest.raises(ValueError, match="of the network's 0 weights none fits"):
        factorise(model, 0.5)


def test_the_solvers_are_those_of_the_documentation() -> None:
    assert set(SPECTRAL) | {"nmf", "semi_nmf", "random"} == set(SOLVERS)


def test_exact_solvers_draw_nothing() -> None:
    model = mixed()
    state = torch.random.get_rng_state()
    all_of(model, UNIFORM, solver="svd")
    greenformers.merge(model)
    assert torch.random.get_rng_state().equal(state)
