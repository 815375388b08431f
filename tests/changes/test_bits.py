"""Weights of few bits: what layers compute, what they weigh, and how each way rounds."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from models import sentences, tokenizer
from test_neurons import lively, texts
from torch import Tensor, nn
from zoo import inputs, network, outputs

import greenformers
from greenformers._torch import OperatorWatch, has_int4, operators
from greenformers.changes import Bits, Heal, LowRank
from greenformers.changes._bits_kernel import LEAST, ROWS
from greenformers.changes._bits_layers import BitsLinear, Packed
from greenformers.changes._coded import CodedEmbedding, coded
from greenformers.measure.parameters import bytes_of, parameters
from greenformers.solve.awq import POWERS, awq
from greenformers.solve.grid import Form, Grid


class Seen(OperatorWatch):
    """The operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Any] = []

    def saw(self, operator: Any, arguments: tuple[Any, ...], result: Any) -> None:
        self.operators.append(operator)


def distance(a: list[Tensor], b: list[Tensor]) -> float:
    return sum((x - y).square().sum().item() for x, y in zip(a, b, strict=True))


def packed(form: Form, m: int = 6, n: int = 21, *, scaled: bool = False) -> Packed:
    draw = torch.Generator().manual_seed(0)
    W = torch.randn(m, n, generator=draw)
    inputs = torch.rand(n, generator=draw) + 0.5 if scaled else None
    grid = Grid.of(W, form)
    return Packed.of(grid.round(W), grid, inputs)


@pytest.mark.parametrize("form", [Form(3, "group", 8), Form(4, "row", symmetric=True), Form(5, "tensor"), Form(8)])
@pytest.mark.parametrize("scaled", [False, True])
def test_layers_multiply_by_steps_times_numbers(form: Form, scaled: bool) -> None:
    held = packed(form, scaled=scaled)
    dense, layer = held.rows(), BitsLinear(held, nn.Parameter(torch.randn(6), requires_grad=False))
    g = form.group_of(21)
    steps = held.unit.item() * held.steps.view(torch.float16).float()
    for i in range(6):
        for j in range(21):
            at = (0, 0) if form.per == "tensor" else (i, j // g)
            zero = 2 ** (form.bits - 1) if held.zero is None else int(held.zero[at])
            places = [divmod(j * form.bits + bit, 8) for bit in range(form.bits)]
            q = sum((int(held.packed[i, byte]) >> low & 1) << bit for bit, (byte, low) in enumerate(places))
            value = steps[at].item() * (q - zero) / (1 if held.inputs is None else held.inputs[j].item())
            assert dense[i, j].item() == pytest.approx(value, rel=1e-5, abs=1e-7)
    x = torch.randn(2, 3, 21, requires_grad=True)
    y = layer(x)
    torch.testing.assert_close(y, x @ dense.T + layer.bias)
    y.square().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * y.detach() @ dense)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), y)
    embedding = CodedEmbedding(held)
    ids = torch.tensor([[0, 5], [3, 3]])
    assert embedding(ids).equal(dense[ids])
    assert layer.weight.shape == (6, 21)


@pytest.mark.skipif(not has_int4(), reason="torch has no product with weights of 4 bits on this processor")
@pytest.mark.parametrize(
    ("form", "n"),
    [(Form(4), 256), (Form(4), 320 + 40), (Form(3, "group", 32, symmetric=True), 300), (Form(2, "row"), 256),
     (Form(4, "tensor"), 300), (Form(4, "group", 96), 300), (Form(1.58, "group", 64, symmetric=True), 256),
     (Form(1, "row", symmetric=True), 260), (Form(4, "group", 500), 300)],
)  # fmt: skip
@pytest.mark.parametrize("scaled", [False, True])
def test_the_product_of_a_few_rows_is_that_of_the_unpacked_weight(form: Form, n: int, scaled: bool) -> None:
    m = LEAST // n + 5  # no multiple of 16
    held = packed(form, m, n, scaled=scaled)
    layer = BitsLinear(held, nn.Parameter(torch.randn(m), requires_grad=False))
    x = torch.randn(ROWS, n)
    with Seen() as seen:
        y = layer(x)
    assert operators.int4_matmul.default in seen.operators
    exact = x @ held.rows().T + layer.bias
    assert ((y - exact).norm() / exact.norm()).item() < 5e-3
    assert layer(x[0]).shape == (m,)
    assert layer(x.view(2, -1, 2, n)).shape == (2, ROWS // 4, 2, m)
    torch.testing.assert_close(
        layer(torch.cat([x, x[:1]])), torch.cat([exact, exact[:1]]), rtol=1e-4, atol=1e-4
    )  # unpacked
    with torch.no_grad():
        held.unit.mul_(2)  # it is seen
    torch.testing.assert_close(layer(x) - layer.bias, 2 * (y - layer.bias), rtol=1e-4, atol=1e-4)
    assert copy.deepcopy(layer)(x).equal(layer(x))


@pytest.mark.parametrize(
    "form",
    [Form(7, "row"), Form(4, "row", symmetric=True), Form(3, "tensor"), Form(1.58, "row", symmetric=True),
     Form(1, "row", symmetric=True)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("scaled", [False, True])
def test_products_of_rounded_inputs_are_in_integers(form: Form, scaled: bool) -> None:
    held = packed(form, 24, 40, scaled=scaled)
    held.rounds_inputs = True
    layer = BitsLinear(held, nn.Parameter(torch.randn(24), requires_grad=False))
    x = torch.randn(5, 7, 40, requires_grad=True)
    with Seen() as seen:
        y = layer(x)
    assert not {torch.ops.aten.mm.default, torch.ops.aten.addmm.default} & set(seen.operators)
    exact = x @ held.rows().T + layer.bias
    assert 0 < ((y - exact).norm() / exact.norm()).item() < 4e-2
    q, scale = held.int8()
    dense = scale[:, None] * q / (1 if held.inputs is None else held.inputs)
    torch.testing.assert_close(dense, held.rows(), rtol=1e-5, atol=1e-7)
    y.square().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * y.detach() @ held.rows(), rtol=1e-4, atol=1e-4)
    torch.compiler.reset()  # else the graphs of all forms would count as one that is compiled again and again
    compiled = torch.compile(layer, backend="eager", fullgraph=True)(x.detach())
    assert ((compiled - exact).norm() / exact.norm()).item() < 4e-2
    with torch.no_grad():
        layer.bias.add_(1)
        held.unit.mul_(2)  # both are seen
    torch.testing.assert_close(layer(x) - layer.bias, 2 * (y - (layer.bias - 1)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("by", ["gptq", "awq", "rounding"])
def test_a_network_with_rounded_inputs_comes_near_and_learns_so(by: str, tmp_path: Path) -> None:
    model, batch = network("bert", hidden_size=64, intermediate_size=128), inputs("bert")
    expected = outputs(model, batch)
    change = Bits(6, by=by, per="row", inputs=8)
    with change.rounding(model):
        aware = outputs(model, batch)
    assert not torch.equal(aware[0], expected[0])
    assert all(torch.equal(a, b) for a, b in zip(outputs(model, batch), expected, strict=True))
    report = greenformers.compress(model, change, calibration=None if by == "rounding" else texts(2))
    assert "products in integers" in str(report)
    assert distance(outputs(model, batch), expected) < 0.05 * sum(x.square().sum().item() for x in expected)
    greenformers.save(model, tmp_path / "small")
    again = greenformers.load(tmp_path / "small")
    assert all(torch.equal(a, b) for a, b in zip(outputs(again, batch), outputs(model, batch), strict=True))


def test_weights_without_such_a_product_are_unpacked() -> None:
    for form in (Form(5), Form(4, "group", 40)):
        held = packed(form, LEAST // 256, 256)
        layer, x = BitsLinear(held, None), torch.randn(2, 256)
        torch.testing.assert_close(layer(x), x @ held.rows().T, rtol=1e-4, atol=1e-4)


def test_casts_leave_steps_as_they_are() -> None:
    layer = BitsLinear(packed(Form(4)), None)
    before = layer.held.steps.clone()
    layer.to(torch.bfloat16)
    assert layer.held.steps.equal(before)
    assert layer(torch.randn(2, 21, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("bits", [1, 1.58, 2, 3, 8])
@pytest.mark.parametrize("by", ["gptq", "awq", "rounding"])
def test_files_are_as_small_as_the_bits_say(bits: float, by: str) -> None:
    model = network("bert", hidden_size=64, intermediate_size=128)
    total = {path: module.weight.numel() for path, module in model.named_modules()
             if isinstance(module, nn.Linear | nn.Embedding)}  # fmt: skip
    rest = sum(x.numel() for name, x in model.named_parameters() if name.rpartition(".")[0] not in total
               or name.endswith("bias"))  # fmt: skip
    greenformers.compress(model, Bits(bits, by=by), calibration=None if by == "rounding" else texts(2))
    layers = dict(coded(model, Packed))
    scaled = sum(4 * layer.held.n for layer in layers.values() if layer.held.inputs is not None)
    shared = list({id(layer.held): layer for layer in layers.values()}.values())
    widths = {layer: -(-layer.held.n // 5) if bits == 1.58 else bits * -(-layer.held.n // 8) for layer in shared}
    of_steps = 2 if bits < 2 else 3
    held = sum(width * layer.held.m + of_steps * layer.held.steps.numel() + 4 for layer, width in widths.items())
    assert bytes_of(model) == held + scaled + 4 * rest
    assert not any(x.requires_grad for x in model.parameters())
    steps = sum((1 if bits < 2 else 2) * layer.held.steps.numel() + 1 for layer in shared)
    assert parameters(model) == sum(layer.held.m * layer.held.n for layer in shared) + steps + scaled // 4 + rest


def test_awq_takes_the_power_that_loses_least() -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(50, 24, generator=draw).double() * torch.logspace(0, 2, 24).double()
    W, C, size, form = torch.randn(5, 24, generator=draw), x.T @ x, x.abs().mean(0), Form(3, "group", 8)
    q, grid, s = awq(W, C, size, form)

    def lost(scale: Tensor) -> float:
        of = Grid.of(W.double() * scale, form)
        D = of.values(of.round(W.double() * scale)) / scale - W
        return ((D.double() @ x.T).square()).sum().item()

    each = {}
    for power in POWERS:
        scale = size**power
        each[power] = lost((scale / (scale.max() * scale.min()).sqrt()).float())
    assert lost(s) == pytest.approx(min(each.values()), rel=1e-6)
    assert min(each, key=each.__getitem__) > 0
    D = grid.values(q) / s - W
    assert ((D.double() @ x.T).square()).sum().item() == pytest.approx(lost(s), rel=1e-6)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_second_order_loses_less_than_rounding(name: str) -> None:
    model, batches = lively(name, torch.float32), texts(6)
    dense = outputs(model, batches[0])
    far = {}
    for by in ("rounding", "gptq"):
        small = lively(name, torch.float32)
        change = Bits(4, by=by, group=16, select=("linear",))  # embeddings have one way only
        greenformers.compress(small, change, calibration=batches if by == "gptq" else None)
        far[by] = distance(outputs(small, batches[0]), dense)
    assert far["gptq"] < far["rounding"]


def test_a_budget_is_kept_and_spent_better_than_evenly(tmp_path: Path) -> None:
    batches, far, bits = texts(6), {}, {}
    dense = [outputs(lively("bert", torch.float32), batch) for batch in batches]
    for change in (Bits(3, group=16), Bits(budget=4.2, group=16)):
        model = lively("bert", torch.float32)
        report = greenformers.compress(model, change, calibration=batches)
        total = sum(unit.before for unit in report.units) / 4
        bits[change.label] = 8 * sum(unit.after for unit in report.units) / total
        far[change.label] = sum(distance(outputs(model, x), y) for x, y in zip(batches, dense, strict=True))
    assert bits["4.2 bits in the mean"] <= min(4.2, bits["3 bits"])
    assert far["4.2 bits in the mean"] < far["3 bits"]
    assert len({unit.form for unit in report.units}) > 1
    read = greenformers.load(greenformers.save(model, tmp_path / "out"))
    assert all(x.equal(y) for x, y in zip(outputs(read, batches[0]), outputs(model, batches[0]), strict=True))


def test_products_of_narrow_weights_are_added_and_kept(tmp_path: Path) -> None:
    batches, far = texts(6), {}
    dense = outputs(lively("bert", torch.float32), batches[0])
    for rank in (None, 4):
        model = lively("bert", torch.float32)
        report = greenformers.compress(model, Bits(2, group=16, rank=rank, select=("linear",)), calibration=batches)
        far[rank] = distance(outputs(model, batches[0]), dense)
    assert far[4] < far[None]
    layer: Any = model.get_submodule("bert.encoder.layer.0.intermediate.dense")
    held = layer.held
    torch.testing.assert_close(held.rows(), held.numbers() + held.left.rows() @ held.right.rows())
    x = torch.randn(2, 5, 32, requires_grad=True)
    torch.testing.assert_close(layer(x), x @ held.rows().T + layer.bias, rtol=1e-5, atol=1e-5)
    torch.autograd.grad(layer(x).square().sum(), x)
    (unit,) = [unit for unit in report.units if unit.path == "bert.encoder.layer.0.intermediate.dense"]
    assert unit.form == "2 bits, groups of 16, and rank 4"
    assert unit.after == sum(part.numel() * part.element_size() for part in held.parameters())
    read = greenformers.load(greenformers.save(model, tmp_path / "out"))
    assert all(x.equal(y) for x, y in zip(outputs(read, batches[0]), outputs(model, batches[0]), strict=True))


def test_biases_make_up_for_what_the_mean_input_loses() -> None:
    model, dense, batch = lively("bert", torch.float32), lively("bert", torch.float32), texts(1)
    path = "bert.encoder.layer.1.output.dense"
    greenformers.compress(model, Bits(2, group=16, select=(path,)), calibration=batch)
    given: list[Tensor] = []
    layer, plain = model.get_submodule(path), dense.get_submodule(path)
    handle = layer.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    with torch.no_grad():
        model(**batch[0])
        handle.remove()
        x = given[0][batch[0]["attention_mask"].bool()]
        far = layer(x) - plain(x)
    assert far.abs().mean() > 1e-3
    torch.testing.assert_close(far.mean(0), torch.zeros(far.shape[1]), atol=1e-5, rtol=0)


def test_linear_layers_see_embeddings_as_they_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen, batches = lively("bert", torch.float32), {}, texts(1)
    by_inputs = Bits.by_inputs

    def noted(self: Bits, W: Tensor, inputs: Any, given: Any) -> Any:
        seen.setdefault(W.shape[1], inputs.size)
        return by_inputs(self, W, inputs, given)

    monkeypatch.setattr(Bits, "by_inputs", noted)
    greenformers.compress(model, Bits(2, group=16), calibration=batches)
    given: list[Tensor] = []
    layer = model.get_submodule("bert.encoder.layer.0.attention.self.query")
    layer.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    model(**batches[0])
    size = given[0][batches[0]["attention_mask"].bool()].double().abs().mean(0)
    torch.testing.assert_close(seen[32], size, rtol=1e-5, atol=1e-6)


def test_tied_heads_share_their_numbers_and_generate_with_a_cache() -> None:
    model = network("gpt2")
    greenformers.compress(model, Bits(6, by="rounding"))
    assert model.lm_head.held is model.transformer.wte.held
    ids = inputs("gpt2")["input_ids"]
    more: Any = {"attention_mask": torch.ones_like(ids), "do_sample": False, "min_new_tokens": 5, "max_new_tokens": 5}
    assert model.generate(ids, **more).equal(model.generate(ids, **more, use_cache=False))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("bits", [1.58, 3])
def test_training_sees_the_weights_as_they_will_be_rounded(name: str, bits: float) -> None:
    model, change, batch = network(name), Bits(bits, by="rounding", group=16), inputs(name)
    before = {key: x.clone() for key, x in model.state_dict().items()}
    with change.rounding(model):
        seen = outputs(model, batch)
        torch.stack([x.square().sum() for x in model(**batch).to_tuple() if isinstance(x, Tensor)]).sum().backward()
    assert all(x.equal(before[key]) for key, x in model.state_dict().items())
    # As if nothing were rounded: no gradient is 0 for that a weight stays at its number.
    weights = [x for key, x in model.named_parameters() if x.dim() > 1 and not re.search("embed|wte|wpe", key)]
    assert len(weights) > 4
    grads = [x.grad for x in weights if x.grad is not None]
    assert len(grads) > 4
    assert all(grad.count_nonzero() > 0.3 * grad.numel() for grad in grads)
    greenformers.compress(model, change)
    for ours, theirs in zip(outputs(model, batch), seen, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bits", [1, 1.58])
def test_sizes_that_were_learnt_stay(bits: float) -> None:
    model, change = network("gpt2"), Bits(bits, by="rounding", group=16)  # whose head shares its weight
    with change.rounding(model):
        learnt = {name: x for name, x in model.named_parameters() if name.endswith("growth")}
        assert learnt
        with torch.no_grad():
            for x in learnt.values():
                x.uniform_(-0.3, 0.3)
        seen = outputs(model, inputs("gpt2"))
    assert model.lm_head.weight is model.transformer.wte.weight
    greenformers.compress(model, change)
    for ours, theirs in zip(outputs(model, inputs("gpt2")), seen, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-4)


def test_noise_rounds_a_share_of_the_weights_in_training_and_all_in_evaluation() -> None:
    model, change = network("bert"), Bits(3, by="rounding", group=16)
    layer = model.get_submodule("bert.encoder.layer.0.intermediate.dense")
    W = layer.weight.detach().clone()
    with change.rounding(model):
        rounded = layer.weight.detach().clone()
    with change.rounding(model, share=0.25):
        model.train()
        drawn = [layer.weight.detach().clone() for _ in range(20)]
        model.eval()
        assert layer.weight.equal(rounded)
    moved = rounded != W
    for x in drawn:
        assert torch.where(x != W, x, rounded).equal(rounded)  # either as it was, or as it will be
    shares = torch.stack([(x != W)[moved].double().mean() for x in drawn])
    assert shares.mean().item() == pytest.approx(0.25, abs=0.01)
    assert not drawn[0].equal(drawn[1])


def test_healing_takes_the_bits_that_follow_into_account(monkeypatch: pytest.MonkeyPatch) -> None:
    shares, rounding = [], Bits.rounding

    def noted(own: Bits, model: Any, *, share: float = 1.0) -> Any:
        shares.append(share)
        return rounding(own, model, share=share)

    monkeypatch.setattr(Bits, "rounding", noted)
    heal = Heal(steps=2, batch_size=4, aware=True, noise=0.5)
    given: dict[str, Any] = {"texts": sentences(24), "tokenizer": tokenizer("bert")}
    report = greenformers.compress(network("bert"), [heal, Bits(3, by="rounding", group=16)], **given)
    assert [step.report.change["name"] for step in report.steps] == ["heal", "bits"]
    assert 0.5 in shares


@pytest.mark.parametrize("by", ["gptq", "awq"])
def test_what_aware_healing_has_learned_is_what_any_way_rounds_to(by: str) -> None:
    heal = Heal(steps=40, batch_size=16, learning_rate=5e-4, aware=True)
    given: dict[str, Any] = {"texts": sentences(60), "tokenizer": tokenizer("bert"), "calibration": texts(2)}
    results = {}
    for way in ("rounding", by):
        model = lively("bert", torch.float32)
        report = greenformers.compress(
            model, [heal, Bits(3, by=way, group=16)], teacher=lively("bert", torch.float32), **given
        )
        first, last = (float(x) for x in re.findall(r"distance ([\d.e-]+) -> ([\d.e-]+)", report.summary()[0])[0])
        assert last < 0.9 * first, "something was learned"
        results[way] = outputs(model, inputs("bert"))
    plain = lively("bert", torch.float32)
    greenformers.compress(plain, Bits(3, by=by, group=16), calibration=texts(2))
    dense = outputs(lively("bert", torch.float32), inputs("bert"))
    assert distance(results[by], results["rounding"]) < 1e-4 * distance(results["rounding"], dense)
    assert distance(outputs(plain, inputs("bert")), results["rounding"]) > 1e-2 * distance(results["rounding"], dense)


@pytest.mark.parametrize(("budget", "share"), [(None, 0.5), (3.5, 1.0), (None, 1.0)])
def test_weights_stay_as_they_were_where_they_are_to_be_rounded_otherwise_or_nothing_was_learned(
    budget: float | None, share: float
) -> None:
    change = Bits(budget=budget) if budget else Bits(3, group=16)
    model, learns = network("bert"), budget is not None or share < 1
    layer: Any = model.get_submodule("bert.encoder.layer.0.output.dense")
    with change.rounding(model, share=share), torch.no_grad():
        if learns:
            layer.parametrizations.weight.original += 0.01
        latent = layer.parametrizations.weight.original.clone()
    assert layer.weight.equal(latent)


def test_refusals() -> None:
    for options, message in (
        ({"bits": 1.5}, re.escape("bits must be 1 (binary), 1.58 (ternary) or a whole number from 2 to 8, got 1.5")),
        ({"bits": 9}, "from 2 to 8, got 9"), ({"bits": 1, "symmetric": True}, "1 bits are symmetric as they are"),
        ({"bits": 1.58, "clip": False}, "grids of 1.58 bits have no range that could be narrower: leave clip out"),
        ({"by": "magic"}, "bits by must be of gptq, awq, rounding; got 'magic'"),
        ({"per": "layer"}, "bits per must be of group, row, tensor; got 'layer'"),
        ({"per": "row", "group": 8}, "bits per row have no group, got 8"), ({"group": 0}, "group must be at least 1"),
        ({"by": "awq", "act_order": True}, "act_order is of gptq, not of awq"),
        ({"budget": 3.5, "bits": 4}, "budget and bits exclude each other, got 3.5 and 4"),
        ({"budget": 9.5}, r"budget must be a number of bits a weight in \(1, 9\), got 9.5"),
        ({"budget": 4.5, "by": "awq"}, "bits budget is of gptq, not of awq"),
        ({"rank": 4, "by": "rounding"}, "bits rank is of gptq, not of rounding"), ({"rank": 0}, "at least 1, got 0"),
        ({"inputs": 4, "per": "row"}, "inputs can be rounded to 8 bits, got 4"),
        ({"inputs": 8}, "need one step for all inputs of a row: bits per row or tensor"),
        ({"inputs": 8, "per": "row", "bits": 8}, "beside weights of up to 7 bits, got 8 bits; int8 has 8"),
        ({"inputs": 8, "per": "row", "budget": 5.0}, "beside weights of up to 7 bits, got a budget"),
        ({"rank": 4, "budget": 4.5}, "budget chooses ranks by itself: leave rank out"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Bits(**options)
    with pytest.raises(ValueError, match="4 bits needs examples to calibrate with"):
        greenformers.compress(network("bert"), Bits())
    with pytest.raises(ValueError, match="are rounded by rounding: gptq would undo what was learned"):
        greenformers.compress(
            network("bert"),
            [Heal(2, aware=True), Bits(symmetric=True)],
            texts=sentences(90),
            tokenizer=tokenizer("bert"),
        )
    with pytest.raises(ValueError, match=r"a budget of 2 bits a weight is below 2\.[0-9]+, the least that there is"):
        greenformers.compress(network("bert"), Bits(budget=2), calibration=texts(1))
    model = network("bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight[0, 0] = torch.inf
    before = {name: x.clone() for name, x in model.state_dict().items()}
    for bits, batches in ((Bits(), texts(1)), (Bits(by="rounding"), None)):
        with pytest.raises(ValueError, match="not finite"):
            greenformers.compress(model, bits, calibration=batches)
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())
    greenformers.compress(network("bert"), Bits(by="rounding"))
    small = network("bert")
    greenformers.compress(small, Bits(by="rounding"))
    with pytest.raises(ValueError, match="cannot follow bits, which leaves rounded weights"):
        greenformers.compress(small, LowRank(0.5, solver="svd"))


def test_the_range_of_a_shared_head_is_not_cut() -> None:
    """Its largest numbers make logits: cut for the mean square, they cost more than they gave."""
    shared, apart = (network("llama", tie_word_embeddings=tie) for tie in (True, False))
    with torch.no_grad():
        for model in (shared, apart):
            model.model.embed_tokens.weight[:, 3] *= 20
    before = {model: model.model.embed_tokens.weight.detach().clone() for model in (shared, apart)}
    for model in (shared, apart):
        greenformers.compress(model, Bits(3, group=16), calibration=[inputs("llama")])
    form = Bits(3, group=16).form
    for model, cut in ((shared, False), (apart, True)):
        W = before[model]
        grids = [Grid.of(W, form, felt=W.new_ones(32) if felt else None) for felt in (False, True)]
        whole, narrower = (grid.values(grid.round(W)) for grid in grids)
        assert not torch.equal(whole, narrower)
        held = model.get_input_embeddings()(torch.arange(53))
        torch.testing.assert_close(held, narrower if cut else whole, rtol=1e-5, atol=1e-5)
