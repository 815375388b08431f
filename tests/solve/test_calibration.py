"""Inputs of linear layers on calibration data, and the errors predicted from them, against the outputs themselves."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mixed import all_of, chain, mixed, rows, tokens
from torch import Tensor, nn
from zoo import everything, inputs, network, outputs

from greenformers import LED, Budget
from greenformers.lowrank.factorize import CALIBRATED, Statistics, factorize
from greenformers.lowrank.multihead import LowRankMultihead
from greenformers.solve import calibrate, sequential
from greenformers.solve.calibrate import DenseRows, covariances
from greenformers.solve.factorise import factorise
from greenformers.solve.solve import solve, spectrum_of
from greenformers.solve.sums import CHUNK, Sums
from greenformers.solve.units import unpack
from greenformers.solve.walk import sites
from greenformers.solve.watch import trace

UNIFORM = Budget(0.6, "uniform")


def seen_by(model: nn.Module, batches: list[Any], path: str) -> Tensor:
    """All inputs of a map, (positions, n), in float64."""
    tensors: list[Tensor] = []
    hook = model.get_submodule(path).register_forward_hook(lambda _, args, __: tensors.append(args[0]))
    with torch.no_grad():
        for batch in batches:
            calibrate.call(model, batch)
    hook.remove()
    return torch.cat([x.flatten(0, -2) for x in tensors]).double()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("solver", ["svd", "activation"])
def test_predicted_achieved_and_recomputed_errors_agree(solver: str, bias: bool) -> None:
    dense, model, batches = chain(24, 31, 18, bias=bias), chain(24, 31, 18, bias=bias), rows(24)
    report = all_of(model, UNIFORM, solver=solver, calibration=batches)
    for layer, path in zip(report.layers, ("0", "2"), strict=True):
        assert layer.rank is not None
        assert layer.predicted == pytest.approx(layer.achieved, abs=1e-6)
        W, low = dense.get_submodule(path).weight.double(), model.get_submodule(path)
        assert isinstance(low, LED)
        V = low.decoder.weight.double() @ low.encoder.weight.double()
        if solver == "svd":
            expected = (W - V).norm() / W.norm()
        else:
            x = seen_by(dense, batches, path)
            y, z = x @ W.mT, x @ V.mT
            if bias:  # which makes up for the mean: what is left to lose is the variation
                y, z = y - y.mean(0), z - z.mean(0)
            expected = (y - z).norm() / y.norm()
        assert layer.achieved == pytest.approx(expected.item(), abs=1e-6)


def test_of_factors_of_that_rank_no_others_lose_less() -> None:
    dense, batches = chain(24, 31, bias=False), rows(24)
    x, W = torch.cat(batches).double(), dense[0].weight.detach().double()
    model = chain(24, 31, bias=False)
    report = all_of(model, Budget(7, "rank"), solver="activation", calibration=batches)
    energies = torch.linalg.svdvals(x @ W.mT).square()
    least = (energies[7:].sum() / energies.sum()).sqrt().item()
    assert report.layers[0].achieved == pytest.approx(least, rel=1e-4)
    plain = chain(24, 31, bias=False)
    all_of(plain, Budget(7, "rank"), solver="svd")
    assert (x @ (W - plain[0].weight.double()).mT).norm() > 1.5 * (x @ (W - model[0].weight.double()).mT).norm()


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_errors_of_convolutions(mode: str) -> None:
    def built() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(6, 10, (3, 2), stride=(2, 1), padding=1, groups=2, padding_mode=mode))

    batches = [torch.randn(3, 6, 7, 5).cumsum(-1) for _ in range(2)]
    model = built()
    report = all_of(model, Budget(2, "rank"), solver="activation", calibration=batches)
    with torch.no_grad():
        y, z = (torch.cat([net(x) for x in batches]).double().transpose(0, 1).flatten(1) for net in (built(), model))
    expected = (y - z).norm() / (y - y.mean(1, keepdim=True)).norm()
    assert report.layers[0].achieved == pytest.approx(expected.item(), abs=1e-6)
    assert report.layers[0].predicted == pytest.approx(expected.item(), abs=1e-6)
    torch.testing.assert_close(z.mean(1), y.mean(1), atol=1e-6, rtol=0)


def test_errors_of_embeddings_count_how_often_a_row_is_read() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(23, 12, padding_idx=0))
    W = model[0].weight.detach().clone()
    ids = torch.tensor([[1, 1, 1, 2, 0, 5], [1, 2, 3, 4, 0, 0]])
    report = all_of(model, Budget(4, "rank"), solver="activation", calibration=[ids])
    weight = (torch.bincount(ids.flatten(), minlength=23).double() + 1).sqrt()[:, None]
    expected = ((W - model[0].weight) * weight).norm() / (W * weight).norm()
    assert report.layers[0].achieved == pytest.approx(expected.item(), abs=1e-6)
    assert report.layers[0].predicted == pytest.approx(expected.item(), abs=1e-6)
    assert not model(torch.tensor([0])).any()


@pytest.mark.parametrize("solver", CALIBRATED)
def test_padding_is_left_out(solver: str) -> None:
    full = inputs("bert", batch=9, length=11)["input_ids"]
    padded, mask = full.clone(), torch.ones_like(full)
    padded[6:, 4:], mask[6:, 4:] = 9, 0  # a token, which shows if it is seen
    apart = [{"input_ids": full[:6]}, {"input_ids": full[6:, :4]}]
    results = []
    for batches in (apart, [{"input_ids": padded, "attention_mask": mask}], [{"input_ids": padded}]):
        model = network("bert", "BertModel")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(6 if parameter.dim() == 2 else 1)  # as drawn, attention hardly tells tokens apart
        # A loss without probes, which would be other ones in other batches.
        report = factorise(
            model, UNIFORM, solver=solver, calibration=batches, loss=_squares, select=["*.layer.*", "*word*"]
        )
        results.append((torch.tensor([layer.achieved for layer in report.layers]), outputs(model, apart[0])[0]))
    (errors, out), (same_errors, same_out), (other_errors, other_out) = results
    torch.testing.assert_close(same_errors, errors, atol=2e-4, rtol=0)
    torch.testing.assert_close(same_out, out, atol=2e-3, rtol=0)
    assert (other_errors - errors).abs().max() > 5e-3
    assert (other_out - out).abs().max() > 1e-2


def _squares(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    hidden = model(**batch).last_hidden_state
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
    return (hidden.pow(2) * torch.arange(32) * mask[..., None]).sum()


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_an_encoder_decoder_has_two_paddings_of_one_shape(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(3)
    ids, targets = (torch.randint(3, 53, (2, 6), generator=draw) for _ in range(2))
    mask, target_mask = torch.ones_like(ids), torch.ones_like(ids)
    mask[0, 4:], target_mask[1, 2:] = 0, 0
    batch = {
        "input_ids": ids, "attention_mask": mask, "decoder_input_ids": targets, "decoder_attention_mask": target_mask,
    }  # fmt: skip
    counted: dict[str, int] = {}
    plain = calibrate.rows

    def counting(site: Any, x: Tensor, given: Any) -> Tensor:
        out = plain(site, x, given)
        counted[site.path] = out.shape[1]
        return out

    monkeypatch.setattr(calibrate, "rows", counting)
    model = network(name)
    list(covariances(model, trace(model, sites(model), batch), [batch], memory=0))
    cross = {path for path in counted if "EncDecAttention.k" in path or "encoder_attn.k_proj" in path}
    assert cross
    for path, count in counted.items():
        assert count == (8 if "decoder" in path and path not in cross else 10), path


@pytest.mark.parametrize("solver", CALIBRATED)
def test_statistics_in_portions_are_the_same(solver: str) -> None:
    def state(memory: float) -> dict[str, Tensor]:
        model = network("bert", num_hidden_layers=1)
        factorise(
            model, UNIFORM, solver=solver, calibration=[inputs("bert"), inputs("bert", 3, 5)], select=everything,
            multiple=2, memory=memory,
        )  # fmt: skip
        return model.state_dict()

    whole = state(2**40)
    for memory in (0, 30_000):
        weights = state(memory)
        assert all(value.equal(whole[key]) for key, value in weights.items())


def test_maps_that_read_one_tensor_share_one_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = network("bert"), inputs("bert")
    traced = trace(model, sites(model), batch)
    groups = [{site.path.rpartition(".")[2] for site in group} for group in traced.groups]
    assert groups.count({"query", "key", "value"}) == 2
    paths: list[str] = []
    plain = calibrate.rows
    monkeypatch.setattr(calibrate, "rows", lambda site, *rest: paths.append(site.path) or plain(site, *rest))
    statistics = dict(covariances(model, traced, [batch, batch]))
    assert len(paths) == 2 * len(groups) < 2 * len(statistics)
    # In the order of execution, and as the linear layers see it.
    x = seen_by(model, [batch, batch], "bert.encoder.layer.1.attention.self.key")
    (value,) = next(seen for site, seen in statistics.items() if site.path.endswith("layer.1.attention.self.value"))
    assert value.mean is not None
    torch.testing.assert_close(value.mean, x.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(value.inputs, (x - x.mean(0)).mT @ (x - x.mean(0)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("solver", CALIBRATED)
def test_the_bias_makes_up_for_the_mean(solver: str) -> None:
    dense, model, batches = chain(24, 31), chain(24, 31), rows(24)
    bias = model[0].bias
    all_of(model, Budget(3, "rank"), solver=solver, calibration=batches)
    assert model[0].bias is bias
    with torch.no_grad():
        means = [torch.cat([net(x) for x in batches]).mean(0) for net in (dense, model)]
    torch.testing.assert_close(means[1], means[0], atol=2e-5, rtol=0)
    assert not bias.equal(dense[0].bias)


def test_sequential_loses_less_than_activation_at_the_end() -> None:
    for widths in ((24, 24, 24, 24, 24), (24, 40, 18, 30)):
        dense, batches, lost = chain(*widths), rows(24), {}
        for solver in ("svd", "activation", "sequential"):
            model = chain(*widths)
            report = all_of(model, Budget(0.5, "uniform"), solver=solver, calibration=batches)
            with torch.no_grad():
                lost[solver] = sum((dense(x) - model(x)).square().sum().item() for x in batches)
        assert lost["sequential"] < 0.95 * lost["activation"] < lost["svd"]
        # Of the last map, as it stands: what it loses on its new inputs is what was predicted.
        assert report.layers[-1].predicted == pytest.approx(report.layers[-1].achieved, abs=1e-3)


def brute(model: nn.Module, batches: list[Any], loss: Callable[[nn.Module, Any], Tensor], path: str) -> Tensor:
    """Sum of d d^T over gradients in what a map gives."""
    outs: list[Tensor] = []
    hook = model.get_submodule(path).register_forward_hook(lambda _, __, out: outs.append(out) or out.retain_grad())
    total = torch.zeros(())
    for batch in batches:
        outs.clear()
        loss(model, batch).backward()
        for out in outs:
            for d in out.grad.flatten(0, -2).double():
                total = total + torch.outer(d, d)
    hook.remove()
    model.zero_grad()
    return total


def test_gradients_are_those_of_a_loop() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) - 0.3).abs().pow(3).sum()

    model, dense, batches = chain(24, 31, 18), chain(24, 31, 18), rows(24)
    model.insert(1, nn.ReLU(inplace=True))  # changes what the map gave, in place
    dense.insert(1, nn.ReLU())
    traced = trace(model, sites(model), batches[0])
    count = sum(x.shape[:-1].numel() for x in batches)
    for memory in (0, 2**30):
        for site, (seen,) in covariances(model, traced, batches, loss=loss, memory=memory):
            expected = brute(dense, batches, loss, site.path) / count
            torch.testing.assert_close(seen.gradients, expected, rtol=1e-4, atol=1e-6)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_the_error_of_the_solver_loss_is_that_of_its_norm() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) * torch.arange(18)).square().sum()

    dense, model, batches = chain(24, 18), chain(24, 18), rows(24)
    report = all_of(model, Budget(5, "rank"), solver="loss", loss=loss, calibration=batches)
    G, x = brute(dense, batches, loss, "0"), seen_by(dense, batches, "0")
    x = x - x.mean(0)
    W, V = dense[0].weight.double(), model[0].decoder.weight.double() @ model[0].encoder.weight.double()
    norms = [torch.einsum("ij,pi,pj->", G, y, y).sqrt() for y in (x @ (W - V).mT, x @ W.mT)]
    assert report.layers[0].achieved == pytest.approx((norms[0] / norms[1]).item(), rel=1e-3)
    assert report.layers[0].predicted == pytest.approx(report.layers[0].achieved, rel=1e-3)


@pytest.mark.parametrize("name", ["bert", "t5", "vit", "clip"])
def test_the_loss_of_a_network_where_none_is_given(name: str) -> None:
    base = {"bert": "BertModel", "vit": "ViTModel"}.get(name)
    model, batch = network(name, base), inputs(name)
    if name == "t5":
        batch["labels"] = batch.pop("decoder_input_ids")
    expected = outputs(network(name, base), batch)
    # Poolers have no part in it, and may be a portion by themselves.
    report = factorise(model, 0.7, solver="loss", calibration=[batch] * 2, multiple=4, memory=0)
    assert report.parameter_share <= 0.7
    out = outputs(model, batch)
    assert all(part.isfinite().all() for part in out)
    assert (out[0] - expected[0]).norm() < expected[0].norm()


@pytest.mark.parametrize("solver", CALIBRATED)
def test_every_kind_of_map_is_reached(solver: str) -> None:
    model = mixed()
    report = all_of(model, UNIFORM, solver=solver, calibration=tokens())
    ranks = {layer.path: layer.rank for layer in report.layers}
    assert len(ranks) == 10
    assert all(ranks[path] for path in ("table", "conv", "frozen", "head", "body.layers.0.self_attn.k_proj"))
    assert isinstance(model.body.layers[0].self_attn, LowRankMultihead)
    assert not any(parameter.requires_grad for parameter in model.frozen.parameters())
    assert all(p.requires_grad for name, p in model.named_parameters() if not name.startswith("frozen"))
    assert not model.table(torch.tensor([0])).any()
    assert not any(part._forward_hooks or part._backward_hooks for part in model.modules())
    # A packed attention is reached too where its projections read three tensors.
    attention = nn.ModuleDict({"it": nn.MultiheadAttention(16, 2, kdim=12, vdim=10, batch_first=True)})
    unpack(attention)
    q, k, v = torch.randn(2, 5, 16), torch.randn(2, 7, 12), torch.randn(2, 7, 10)
    attention.forward = lambda *x: attention["it"](*x)[0]  # type: ignore[method-assign]
    groups = trace(attention, sites(attention), (q, k, v)).groups
    assert {tuple(site.path for site in group) for group in groups} == {
        ("it.q_proj",), ("it.k_proj",), ("it.v_proj",), ("it.out_proj",),
    }  # fmt: skip


def test_little_data_is_enough() -> None:
    model = chain(24, 31, 18)
    report = factorise(model, 0.9, solver="activation", calibration=[rows(24)[0][:2]], multiple=4)
    # Two points vary in one direction: one component loses nothing.
    assert all(layer.achieved < 1e-3 for layer in report.layers)
    assert model(rows(24)[1]).isfinite().all()


def test_inputs_may_be_passed_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.map = nn.Linear(24, 24)

        def forward(self, x: Tensor) -> Tensor:
            return self.map(input=x)

    report = all_of(Named(), UNIFORM, solver="activation", calibration=rows(24))
    assert report.layers[0].predicted == pytest.approx(report.layers[0].achieved, abs=1e-6)


@pytest.mark.parametrize("memory", [0, 60_000, 2**30])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("solver", ["sequential", "sequential_loss"])
def test_sequential_is_what_its_definition_gives(solver: str, bias: bool, memory: float) -> None:
    """Map by map from all inputs at once, dense and changed, in float64."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) - 0.3).square().sum()

    widths = (24, 40, 18, 30)  # more outputs than inputs, and fewer
    dense, model = chain(*widths, bias=bias).double(), chain(*widths, bias=bias).double()
    draw = torch.Generator().manual_seed(5)
    batches = [torch.randn(401, 24, generator=draw).double() for _ in range(3)]
    rank = 9
    report = all_of(model, Budget(rank, "rank"), solver=solver, loss=loss, calibration=batches, memory=memory)
    for path, layer in zip(("0", "2", "4"), report.layers, strict=True):
        linear, low = dense.get_submodule(path), model.get_submodule(path)
        assert isinstance(low, LED)
        W, x = linear.weight.detach().double(), seen_by(model, batches, path)
        y = seen_by(dense, batches, path) @ W.mT
        G = brute(dense, batches, loss, path) if "loss" in solver else None
        if bias:
            assert low.bias is not None
            # What the bias makes up for: the mean of what the map gives is that of the dense one.
            mean = y.mean(0) + linear.bias
            torch.testing.assert_close(low(x).mean(0), mean, rtol=0, atol=1e-9)
            x, y = x - x.mean(0), y - y.mean(0)
        factors = factorize(W, rank, solver, Statistics(x.mT @ x, cross=y.mT @ x, gradients=G))
        expected = x @ (factors.decoder.double() @ factors.encoder.double()).mT
        actual = x @ (low.decoder.weight.double() @ low.encoder.weight.double()).mT
        assert (actual - expected).norm() < 1e-6 * expected.norm()
        norm = torch.eye(len(W), dtype=torch.float64) if G is None else G
        lost, total = (torch.einsum("pi,ij,pj->", part, norm, part).item() for part in (y - expected, y))
        assert layer.achieved == pytest.approx((lost / total) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("felt", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_spectra_need_no_more_than_what_a_map_gives(bias: bool, felt: bool) -> None:
    model, batches = chain(24, 40, 18, 30, bias=bias), rows(24)
    traced = trace(model, sites(model), batches[0])

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) - 0.3).square().sum()

    solver = "loss" if felt else "activation"
    full, less = (
        dict(covariances(model, traced, batches, loss=loss if felt else None, spectra=spectra))
        for spectra in (False, True)
    )
    assert [less[site][0].inputs is None for site in less] == [False, True, False]
    for site, seen in full.items():
        energies = spectrum_of(site, solver, seen)
        torch.testing.assert_close(spectrum_of(site, solver, less[site]), energies, rtol=1e-4, atol=1e-6 * energies[0])
        torch.testing.assert_close(solve(site, 5, solver, seen).energies, energies, rtol=1e-4, atol=1e-8 * energies[0])


def test_products_of_many_positions_are_those_of_all_at_once() -> None:
    draw = torch.Generator().manual_seed(4)
    sizes = (3, CHUNK - 1, 1, 2 * CHUNK + 5, 700, 700)
    a, b = (torch.randn(2, sum(sizes), n, generator=draw) for n in (7, 5))
    sums = Sums([])
    for x, y in zip(a.split(sizes, 1), b.split(sizes, 1), strict=True):
        x = x.clone()
        sums.products("aa", x)
        sums.products("ab", x, y)
        x.zero_()  # as what follows a layer may do
    products = sums.done()
    assert products["aa"].dtype == torch.float64
    torch.testing.assert_close(products["aa"], a.double().mT @ a.double(), rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(products["ab"], a.double().mT @ b.double(), rtol=1e-5, atol=1e-3)


def test_of_dense_rows_the_first_are_held() -> None:
    keys = [(name, False) for name in "abc"]
    held = DenseRows(2 * 2 * 40)
    held.begin(keys)
    part = torch.ones(1, 2, 5)  # 40 bytes
    for number in range(2):
        for key in keys:
            held.add(key, number, part, calls=1)
            held.add(key, number, 7 * part, calls=1)  # a call more than in other batches
    assert [held.holds([key]) for key in keys] == [True, True, False]
    assert [[tensor.tolist() for tensor in batch] for batch in held.take(keys[0])] == [[part.tolist()]] * 2
    assert not held.holds(keys[:1])
    held.begin(keys[2:])
    held.add(keys[2], 0, part, calls=1)
    assert held.holds(keys[1:])


def test_the_dense_network_runs_once_for_statistics_and_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    plain = sequential._Passes._note
    monkeypatch.setattr(
        sequential._Passes, "_note", lambda self, number, *rest: runs.append(number) or plain(self, number, *rest)
    )
    for memory, expected in ((2**30, 0), (8_000, 1), (0, 12)):
        runs.clear()
        model = network("bert", "BertModel")
        factorise(model, UNIFORM, solver="sequential", calibration=[inputs("bert")], memory=memory)
        assert (len(runs) >= expected) if expected else not runs
