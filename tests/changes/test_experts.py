"""Mixtures of experts whose weights transformers holds in one parameter for all experts: of low rank, in few bits."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

import greenformers
from greenformers.changes import Bits, Change, Int8, LowRank, Product
from greenformers.changes._bits_layers import BitsExperts, BitsLinear
from greenformers.changes._coded import CodedExperts
from greenformers.changes._coverage import coverage
from greenformers.changes._int8_experts import Int8Experts
from greenformers.changes._int8_linear import Int8Linear
from greenformers.checkpoint.pack_quantized import save_pack_quantized
from greenformers.export.packed_linear import check_packed
from greenformers.lowrank.experts import ExpertsLED, ExpertsLinear, Routed
from greenformers.lowrank.factorize import factorize
from greenformers.model._transformers import experts_form
from greenformers.model.experts import RoutedExperts, pack, unpack
from greenformers.solve.calibrate import covariances
from greenformers.solve.census import census
from greenformers.solve.solve import solve
from greenformers.solve.units import commit, filled
from greenformers.solve.walk import sites
from greenformers.solve.watch import trace

EXPERTS, CHOSEN, WIDTH, INNER, VOCABULARY = 5, 2, 28, 20, 53
"""Widths are multiples of 4: the grouped product of torch, by which the dense classes compute, takes no others."""

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 14,
    "num_key_value_heads": 2, "intermediate_size": INNER, "max_position_embeddings": 31, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "num_experts_per_tok": CHOSEN,
}  # fmt: skip
LATENT = {
    "head_dim": 4, "q_lora_rank": 11, "kv_lora_rank": 13, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 7,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": EXPERTS}),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        {
            "num_experts": EXPERTS,
            "moe_intermediate_size": INNER,
            "shared_expert_intermediate_size": 17,
        },
    ),
    "olmoe": ("OlmoeForCausalLM", {"num_experts": EXPERTS}),
    "gpt_oss": ("GptOssForCausalLM", {"num_local_experts": EXPERTS}),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {
            "n_routed_experts": EXPERTS,
            "moe_intermediate_size": INNER,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            **LATENT,
        },
    ),
}
LOW = LowRank(keep=0.5, multiple=1)
RECIPES: dict[str, list[Change]] = {
    "low rank": [LOW], "int8": [Int8()], "both": [LOW, Int8()], "3 bits": [Bits(3, group=8)],
    "4 bits, int8 inputs": [Bits(4, by="rounding", per="row", inputs=8)], "budget": [Bits(budget=7, group=8)],
    "codebooks": [Product(4, centroids=8, by="kmeans")],
}  # fmt: skip
FEW: dict[str, Bits] = {
    "3 bits": Bits(3, by="rounding", group=8), "awq": Bits(4, by="awq", per="row"),
    "ternary, of a tensor": Bits(1.58, by="rounding", per="tensor"),
    "int8 inputs": Bits(4, by="rounding", per="row", inputs=8),
}  # fmt: skip


def network(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    name, own = KINDS[kind]
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**SIZES | own)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3) if parameter.dim() > 1 else parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batches(count: int = 3, length: int = 11) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(3, VOCABULARY, (2, length), generator=draw)} for _ in range(count)]


@torch.no_grad()
def scores(model: nn.Module, batch: dict[str, Tensor] | None = None) -> Tensor:
    logits: Tensor = model(**(batch or batches()[0])).logits
    return logits


def fused(model: nn.Module) -> dict[str, Any]:
    """The experts of a dense network."""
    return {path: module for path, module in model.named_modules() if experts_form(module) is not None}


def routed(model: nn.Module) -> dict[str, RoutedExperts]:
    """The experts of a changed network."""
    return {path: module for path, module in model.named_modules() if isinstance(module, RoutedExperts)}


def products(part: Any) -> Tensor:
    """D_e E_e of each expert, or the dense weights: (E, m, n)."""
    if isinstance(part, ExpertsLinear):
        return part.matrices.detach()
    pairs = zip(part.decoders.weight, part.encoders.weight, strict=True)
    return torch.stack([(D @ E).detach() for D, E in pairs])


@torch.no_grad()
def dense_twin(model: PreTrainedModel, kind: str) -> PreTrainedModel:
    """The dense class with the weights that the experts of another network stand for; the rest is as drawn."""
    twin = network(kind)
    for path, module in routed(model).items():
        into, form = twin.get_submodule(path), module.form
        for part, weight, bias in ((module.up, form.up, form.up_bias), (module.down, form.down, form.down_bias)):
            matrices = products(part)
            getattr(into, weight).copy_(matrices.mT if kind == "gpt_oss" else matrices)
            if part.bias is not None:
                getattr(into, bias).copy_(part.bias)
    return twin


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("solver", ["svd", "activation", "loss", "random"])
def test_low_rank_experts_compute_what_their_products_do(kind: str, solver: str) -> None:
    model = network(kind)
    change = LowRank(keep=0.4, multiple=1, solver=solver, select=("experts",), uniform=solver == "random")
    report = greenformers.compress(model, [change], calibration=batches())
    assert len(routed(model)) == len(fused(network(kind)))
    assert all(isinstance(part, ExpertsLED) for each in routed(model).values() for part in (each.up, each.down))
    assert all(unit.lost is not None and 0 < unit.lost < 1.5 for unit in report.units)
    torch.testing.assert_close(scores(model), scores(dense_twin(model, kind)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_at_full_rank_nothing_is_lost(kind: str) -> None:
    model = network(kind)
    unpack(model)
    for site in sites(model, "experts"):
        part = solve(site, min(site.m, site.n), "svd")
        commit(model, filled(model, site, part.decoder, part.encoder))
    assert routed(model)
    torch.testing.assert_close(scores(model), scores(network(kind)), atol=1e-5, rtol=1e-5)
    assert LowRank.revert(model) == 2 * len(fused(network(kind)))
    assert not routed(model)
    assert {key: x.shape for key, x in model.state_dict().items()} == {
        key: x.shape for key, x in network(kind).state_dict().items()
    }
    torch.testing.assert_close(scores(model), scores(network(kind)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_reloaded_by_the_plain_class_to_the_bit(kind: str, recipe: str, tmp_path: Path) -> None:
    model = network(kind)
    greenformers.compress(model, RECIPES[recipe], calibration=batches())
    assert routed(model)
    expected = scores(model)
    greenformers.save(model, tmp_path / "once")
    once = type(model).from_pretrained(tmp_path / "once")
    once.save_pretrained(tmp_path / "twice")
    for again in (once, greenformers.load(tmp_path / "twice"), copy.deepcopy(once)):
        assert torch.equal(scores(again), expected)
        assert again.state_dict().keys() == model.state_dict().keys()
    batch = {"input_ids": batches()[0]["input_ids"][:, :3]}
    assert once.generate(**batch, max_new_tokens=3, do_sample=False).shape == (2, 6)
    half = scores(once.to(torch.bfloat16))
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_half_is_half_of_linear_layers_and_experts(kind: str) -> None:
    """It was 7 % of such a model: experts were left as they are, and no report said so."""
    model = network(kind)
    before = {part.kind: 0 for part in census(model)}
    for part in census(model):
        before[part.kind] += part.count
    report = greenformers.compress(model, [LOW])
    share = sum(unit.after for unit in report.units) / sum(unit.before for unit in report.units)
    assert sum(unit.before for unit in report.units) == 4 * (before["linear layers"] + before["experts"])
    assert 0.48 < share <= 0.5
    assert "experts" not in report.steps[0].report.summary.partition("left as they are")[2]


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_gradients_are_those_of_the_products(kind: str) -> None:
    model = network(kind)
    packed = next(iter(fused(model).values()))
    packed.config._experts_implementation = "eager"
    form = experts_form(packed)
    assert form is not None
    module = RoutedExperts(packed, form)
    low = {name: ExpertsLED.like(getattr(module, name), 7) for name in ("up", "down")}
    for name, unit in low.items():
        for parameter in unit.parameters():
            nn.init.normal_(parameter, std=0.3)
        setattr(module, name, unit)
    x = torch.randn(23, WIDTH, requires_grad=True)
    chosen = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(23)])
    weights = torch.rand(23, CHOSEN, requires_grad=True)
    target = torch.randn(23, WIDTH)
    learnt = [x, weights, *(parameter for unit in low.values() for parameter in unit.parameters())]
    gradients = torch.autograd.grad((module(x, chosen, weights) * target).sum(), learnt)
    held = {}
    for unit, weight, bias in ((low["up"], form.up, form.up_bias), (low["down"], form.down, form.down_bias)):
        product = unit.decoders.weight @ unit.encoders.weight
        held[weight] = product.mT if form.transposed else product
        held |= {} if unit.bias is None else {bias: unit.bias}
    expected = torch.autograd.grad((functional_call(packed, held, (x, chosen, weights)) * target).sum(), learnt)
    torch.testing.assert_close(gradients, expected, atol=1e-4, rtol=1e-4)


def test_statistics_are_those_of_the_rows_that_are_routed() -> None:
    """Of an expert what it sees, without padding; of one that sees few, drawn towards what has no direction."""
    model = network("mixtral")
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[1, 6:] = 0
    calibration = [batch | {"attention_mask": mask} for batch in batches()]
    seen: dict[int, list[Tensor]] = {expert: [] for expert in range(EXPERTS)}

    def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        x, chosen, _ = args
        for token in mask.flatten().nonzero()[:, 0].tolist():
            for expert in chosen[token].tolist():
                seen[expert].append(x[token])

    path, first = next(iter(fused(model).items()))
    handle = first.register_forward_pre_hook(note)
    for batch in calibration:
        scores(model, batch)
    handle.remove()
    unpacked = unpack(model)
    (site,) = sites(model, f"{path}.up")
    ((_, statistics),) = covariances(model, trace(model, [site], calibration[0]), calibration)
    pack(model, unpacked)
    for expert, rows in seen.items():
        x = torch.stack(rows).double()
        share = min(len(x) / WIDTH, 1)
        C = x.mT @ x
        expected = share * C + (1 - share) * C.trace() / WIDTH * torch.eye(WIDTH)
        torch.testing.assert_close(statistics[expert].inputs, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("solver", ["activation", "loss", "sequential", "sequential_loss"])
def test_an_expert_without_tokens_is_factorised_by_its_weight(solver: str) -> None:
    model = network("gpt_oss")
    path, first = next(iter(fused(model).items()))
    weights = first.gate_up_proj.detach().mT.clone()
    chosen: set[int] = set()
    handle = first.register_forward_pre_hook(lambda _, args: chosen.update(args[1].flatten().tolist()))
    single = [{"input_ids": torch.tensor([[5, 5]])}]
    scores(model, single[0])
    handle.remove()
    assert 0 < len(chosen) < EXPERTS
    change = LowRank(rank=9, solver=solver, select=("experts", "linear"))
    report = greenformers.compress(model, [change], calibration=single)
    up: Any = routed(model)[path].up
    for expert in set(range(EXPERTS)) - chosen:
        plain = factorize(weights[expert], 9)
        torch.testing.assert_close(products(up)[expert], plain.decoder @ plain.encoder, atol=1e-5, rtol=1e-4)
    nearest = {"sequential": "activation", "sequential_loss": "loss"}.get(solver)
    said = report.steps[0].report.summary
    assert ("has no form for experts" in said) == (nearest is not None)
    assert nearest is None or f"{nearest} of those" in said


@pytest.mark.parametrize("kind", KINDS)
def test_int8_experts_compute_as_int8_linear_layers(kind: str) -> None:
    model, dense = network(kind), network(kind)
    greenformers.compress(model, [Int8()])
    unpack(dense)
    rows = torch.randn(31, WIDTH)
    for path, module in routed(model).items():
        before: Any = dense.get_submodule(path)
        for name, n in (("up", before.up.matrices.shape[2]), ("down", INNER)):
            part: Any = getattr(module, name)
            assert type(part) is Int8Experts
            chosen = torch.stack([torch.randperm(EXPERTS - 1)[:CHOSEN] for _ in range(31)])  # none goes to the last
            ways = Routed.of(chosen, EXPERTS)
            x = rows[ways.tokens, :n].requires_grad_()
            W, bias = getattr(before, name).matrices, getattr(before, name).bias
            layers = [Int8Linear.of(W[e], None if bias is None else nn.Parameter(bias[e])) for e in range(EXPERTS)]
            each = zip(x.split(ways.counts), layers, strict=True)
            expected = torch.cat([layer(some) for some, layer in each if len(some)])
            output = part(x, ways)
            assert torch.equal(output, expected)
            target = torch.randn_like(output)
            gradients = [torch.autograd.grad((y * target).sum(), x)[0] for y in (output, expected)]
            torch.testing.assert_close(*gradients)
            torch.testing.assert_close(part.weight + 0, getattr(before, name).weight.detach(), atol=0.05, rtol=0.05)


def test_int8_training_rounds_experts_too() -> None:
    model = network("gpt_oss")
    names = {name: id(parameter) for name, parameter in model.named_parameters()}
    expected, rounding = scores(model), Int8().rounding(model)
    assert rounding is not None
    with rounding:
        rounded = scores(model)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == names
    assert torch.equal(scores(model), expected)
    greenformers.compress(model, [Int8()])
    assert (rounded - scores(model)).norm() < 0.5 * (expected - scores(model)).norm() + 0.02 * expected.norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FEW)
def test_experts_of_few_bits_are_so_many_linear_layers(kind: str, form: str) -> None:
    """Each with a grid for its own rows, but of one step for all where that is asked for; no expert sees another."""
    model, dense = network(kind), network(kind)
    greenformers.compress(model, [FEW[form]], calibration=batches())
    unpack(dense)
    assert len(routed(model)) == len(routed(dense))
    rows = torch.randn(31, WIDTH)
    for path, module in routed(model).items():
        before: Any = dense.get_submodule(path)
        for name, n in (("up", WIDTH), ("down", INNER)):
            part: Any = getattr(module, name)
            W, bias = getattr(before, name).matrices, getattr(before, name).bias
            assert type(part) is BitsExperts
            assert part.weight.shape == getattr(before, name).weight.shape
            ways = Routed.of(torch.stack([torch.randperm(EXPERTS - 1)[:CHOSEN] for _ in range(31)]), EXPERTS)
            x = rows[ways.tokens, :n].requires_grad_()
            held = (part.weight + 0).mT if part.transposed else part.weight + 0
            alone = [FEW[form].by_weights(E.detach(), None) for E in W]  # type: ignore[arg-type]
            if FEW[form].per != "tensor":
                assert torch.equal(held, torch.stack([E.rows() for E in alone]))
                layers = [BitsLinear(E, None if bias is None else nn.Parameter(bias[e])) for e, E in enumerate(alone)]
                expected = torch.cat(
                    [layer(some) for some, layer in zip(x.split(ways.counts), layers, strict=True) if len(some)]
                )
            else:
                biases = [None] * EXPERTS if bias is None else bias.detach()
                each = zip(x.split(ways.counts), held, biases, strict=True)
                expected = torch.cat([nn.functional.linear(some, E, b) for some, E, b in each if len(some)])
            output = part(x, ways)
            torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
            target = torch.randn_like(output)
            gradients = [torch.autograd.grad((y * target).sum(), x)[0] for y in (output, expected)]
            torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_codebooks_of_experts(kind: str) -> None:
    """One codebook for all experts; dense experts of its entries come back."""
    model = network(kind)
    greenformers.compress(model, [Product(4, centroids=64, by="kmeans", select=("experts",))])
    parts = [part for each in routed(model).values() for part in (each.up, each.down)]
    assert all(type(part) is CodedExperts for part in parts)
    expected = scores(model)
    assert Product.revert(model) == len(parts)
    assert not routed(model)
    torch.testing.assert_close(scores(model), expected, atol=1e-5, rtol=1e-5)
    assert {key: x.shape for key, x in model.state_dict().items()} == {
        key: x.shape for key, x in network(kind).state_dict().items()
    }


@pytest.mark.parametrize(
    "change", [Bits(4, by="rounding", group=8), Bits(1.58, by="rounding"), Product(4, centroids=8, by="kmeans")]
)
def test_training_rounds_experts_too(change: Change) -> None:
    model = network("gpt_oss")
    names = {name: id(parameter) for name, parameter in model.named_parameters()}
    expected, rounding = scores(model), change.rounding(model)
    assert rounding is not None
    with rounding:
        rounded = scores(model)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == names
    assert torch.equal(scores(model), expected)
    assert not routed(model)
    greenformers.compress(model, [change], calibration=batches())
    assert (rounded - scores(model)).norm() < 0.5 * (expected - scores(model)).norm() + 0.02 * expected.norm()


def test_experts_of_few_bits_take_so_many_bytes() -> None:
    model = network("mixtral")
    report = greenformers.compress(model, [Bits(4, by="rounding", group=28)])
    assert "experts" not in report.steps[0].report.summary.partition("left as they are")[2]
    for unit in report.units:
        if ".experts." in unit.path:
            n = WIDTH if unit.path.endswith("up") else INNER
            rows = unit.before // (4 * n)
            assert unit.after == rows * (4 * -(-n // 8) + 3) + 4  # numbers, a step and a middle a row, and the unit


def test_files_of_others_hold_experts_as_they_can(tmp_path: Path) -> None:
    """Dense beside packed layers; where transformers renames experts in files, it would not find them again."""
    few = Bits(4, by="rounding", group=28, symmetric=True)
    for kind in ("gpt_oss", "mixtral"):
        model = network(kind)
        greenformers.compress(model, [few])
        (tmp_path / kind).mkdir()
        with pytest.raises(ValueError, match=r"experts of few bits have no form in onnx and openvino"):
            check_packed(model)
        if kind == "mixtral":
            with pytest.raises(ValueError, match=r"cannot hold a MixtralForCausalLM, of which transformers renames"):
                save_pack_quantized(model, tmp_path / kind)
            continue
        save_pack_quantized(model, tmp_path / kind)
        torch.testing.assert_close(scores(greenformers.load(tmp_path / kind)), scores(model), atol=1e-5, rtol=1e-5)


class Strange(nn.Module):
    """Experts as no class of transformers with interchangeable ways to compute them holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(7, 11)
        self.experts = nn.Module()
        self.experts.weight = nn.Parameter(torch.randn(3, 7, 11))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + torch.einsum("enm,...n->...m", self.experts.weight, x)


@pytest.mark.parametrize("change", [LowRank(rank=2), Int8()])
def test_what_is_left_is_named_with_its_share(change: Change) -> None:
    model = Strange()
    report = greenformers.compress(model, [change])
    assert "they are 24 % of the model's parameters; left as they are: weights of Module 72 % (`experts`)" in str(
        report
    )


def test_shares_of_a_network() -> None:
    model = network("mixtral")
    said = coverage(census(model), ["model.layers.0.mlp.experts.up"], unreached=["lm_head"])
    total = sum(parameter.numel() for parameter in model.parameters())
    experts = EXPERTS * WIDTH * INNER
    assert said.startswith(f"{100 * 2 * experts / total:.0f} % of the model's parameters; left as they are: ")
    assert f"experts {100 * 4 * experts / total:.0f} % (`model.layers.*.mlp.experts.down`, " in said
    share = 100 * VOCABULARY * WIDTH / total
    assert f"linear layers that the data does not reach {share:.1f} % (`lm_head`)" in said
    assert "weights of MixtralTopKRouter" in said
    assert not routed(model)
