"""The eleven faults measured in `greenformer` 0.2.2, one test each: none of them is here."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from transformers import AutoModelForMaskedLM
from zoo import difference, inputs, network, outputs

import greenformers
from greenformers import LED, auto_fact
from greenformers.changes import LowRank
from greenformers.lowrank.convolution import LowRankConv
from greenformers.lowrank.factorize import SOLVERS
from greenformers.lowrank.multihead import LowRankMultihead
from greenformers.solve.factorise import factorise
from greenformers.solve.units import units

DATA_FREE = ("svd", "randomized", "nmf", "semi_nmf", "random")


def map_error(dense: Tensor, layer: nn.Module) -> float:
    """Relative to the weight."""
    assert isinstance(layer.weight, Tensor)
    return ((dense - layer.weight).norm() / dense.norm()).item()


def optimum(W: Tensor, rank: int) -> float:
    """Eckart and Young: the least relative error."""
    energies = torch.linalg.svdvals(W.double()).square()
    return (energies[rank:].sum() / energies.sum()).sqrt().item()


def test_1_linear_maps_right_under_the_root_are_found() -> None:
    for call in (lambda model: auto_fact(model, 0.5), lambda model: greenformers.compress(model, LowRank(rank=3))):
        model = nn.Sequential(nn.Linear(13, 17), nn.Tanh(), nn.Linear(17, 19))
        call(model)
        assert [path for path, _ in units(model)] == ["0", "2"]


@pytest.mark.parametrize("call", ["compress", "auto_fact"])
def test_2_reloaded_it_is_what_was_saved(call: str, tmp_path: Path) -> None:
    model = network("bert")
    if call == "compress":
        greenformers.compress(model)
    else:
        auto_fact(model, 0.5, solver="svd")
    model.save_pretrained(tmp_path)
    again, info = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert sum(isinstance(part, LED) for part in again.modules()) >= 13
    assert difference(outputs(again, inputs("bert")), outputs(model, inputs("bert"))) == 0.0


@pytest.mark.parametrize(
    ("solver", "dtype"), [*((solver, torch.float16) for solver in DATA_FREE), ("svd", torch.bfloat16)]
)
def test_3_half_precision(solver: str, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(31, 37))
    full = model[0].weight.detach().clone()
    model.to(dtype)
    greenformers.compress(model, LowRank(rank=11, solver=solver))
    (led,) = model
    assert {parameter.dtype for parameter in led.parameters()} == {dtype}
    assert model(torch.randn(5, 31, dtype=dtype)).isfinite().all()
    if solver in ("svd", "randomized"):
        assert map_error(full, led) == pytest.approx(optimum(full, 11), rel=0.02)


def test_4_nmf_of_signed_weights() -> None:
    W = nn.Linear(48, 40).weight.detach()
    assert (W < 0).any()
    for solver in ("nmf", "semi_nmf"):
        model = nn.Sequential(nn.Linear(48, 40))
        model[0].weight = nn.Parameter(W.clone())
        greenformers.compress(model, LowRank(rank=8, solver=solver))
        # The zero matrix would make 1.
        assert optimum(W, 8) <= map_error(W, model[0]) < 0.95


@pytest.mark.parametrize("solver", DATA_FREE)
def test_5_the_bias_is_kept(solver: str) -> None:
    for call in (
        lambda model: greenformers.compress(model, LowRank(rank=3, solver=solver)),
        lambda model: auto_fact(model, 3, solver={"semi_nmf": "snmf", "randomized": "svd"}.get(solver, solver)),
    ):
        model = nn.Sequential(nn.Linear(13, 17), nn.Conv1d(13, 17, 3))
        biases = [part.bias for part in model]
        values = [bias.detach().clone() for bias in biases]
        call(model)
        assert isinstance(model[0], LED)
        for part, bias, value in zip(model, biases, values, strict=True):
            assert part.bias is bias
            assert bias.equal(value)


def test_6_svd_is_exact_and_always_the_same() -> None:
    W = torch.randn(67, 3) @ torch.randn(3, 59) + 0.3 * torch.randn(67, 59)
    layers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(59, 67))
        model[0].weight = nn.Parameter(W.clone())
        auto_fact(model, 0.5, solver="svd")
        layers.append(model[0])
    assert layers[0].decoder.weight.equal(layers[1].decoder.weight)
    assert layers[0].encoder.weight.equal(layers[1].encoder.weight)
    assert map_error(W, layers[0]) == pytest.approx(optimum(W, layers[0].rank), rel=1e-6)


@pytest.mark.parametrize("grad", [True, False])
def test_7_torch_encoders_and_t5_run_and_projections_are_factorised(grad: bool) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 2, 36, batch_first=True), 2).eval()
    dense = [model.layers[0].self_attn.in_proj_weight.detach().clone(), model.layers[0].linear1.weight.detach().clone()]
    greenformers.compress(model, LowRank(rank=7))
    layer = model.layers[0]
    assert isinstance(layer.self_attn, LowRankMultihead)
    layers = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj, layer.linear1]
    for W, led in zip([*dense[0].chunk(3), dense[1]], layers, strict=True):
        assert isinstance(led, LED)
        assert map_error(W, led) == pytest.approx(optimum(W, 7), rel=1e-5)
    x = torch.randn(3, 5, 24)
    with torch.set_grad_enabled(grad):
        assert model(x).shape == x.shape
        assert model(x, src_key_padding_mask=torch.zeros(3, 5, dtype=torch.bool)).isfinite().all()
    t5 = network("t5")
    greenformers.compress(t5)
    assert all(part.isfinite().all() for part in outputs(t5, inputs("t5")))


@pytest.mark.parametrize("call", ["compress", "auto_fact"])
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_8_tied_weights_stay_tied(name: str, call: str) -> None:
    model = network(name)
    if call == "compress":
        greenformers.compress(model)
    else:
        auto_fact(model, 0.9, solver="svd")
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    if isinstance(head, LED):
        assert head.decoder.weight is table.decoder
        assert head.encoder.weight is table.encoder
    else:
        assert head.weight is table.weight


def test_9_grouped_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(12, 21, (3, 2), groups=3, padding=1))
    W = model[0].weight.detach().clone()
    greenformers.compress(model, LowRank(rank=4, select=("conv",)))
    (conv,) = model
    assert isinstance(conv, LowRankConv)
    weight = conv.weight
    for group in range(3):
        block, approximation = W[7 * group :][:7].flatten(1), weight[7 * group :][:7].flatten(1)
        assert ((block - approximation).norm() / block.norm()).item() == pytest.approx(optimum(block, 4), rel=1e-5)
    x = torch.randn(2, 12, 5, 7)
    torch.testing.assert_close(model(x), nn.functional.conv2d(x, weight, conv.bias, padding=1, groups=3))


def test_10_the_rank_limit_of_a_convolution_counts_its_kernel() -> None:
    model = auto_fact(nn.Sequential(nn.Conv2d(64, 128, 3)), 0.999, solver="svd")
    assert model[0].rank == int(0.999 * int(128 * 576 / (128 + 576))) == 103
    # Without the kernel it would be 42: a rank between the two factorises, and saves weights.
    model = auto_fact(nn.Sequential(nn.Conv2d(64, 128, 3)), 80, solver="svd")
    assert model[0].rank == 80
    assert model[0].encoder.numel() + model[0].decoder.numel() < 128 * 576


@pytest.mark.parametrize("solver", ["SVD", "rand", "", "snmf2"])
def test_11_an_unknown_solver_is_refused(solver: str) -> None:
    for call in (auto_fact, factorise, lambda _, keep, solver: LowRank(keep=keep, solver=solver)):
        model = nn.Sequential(nn.Linear(13, 17))
        with pytest.raises(ValueError, match="solver must be one of"):
            call(model, 0.5, solver=solver)
        assert type(model[0]) is nn.Linear
        assert not is_parametrized(model[0])
    assert "SVD" not in SOLVERS
