"""Fewer hidden coordinates: found by what a network computes, rotated or deleted; beside oracles from the formulas."""

import copy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from fresh import read_again
from models import folder, pairs
from test_neurons import lively, texts
from torch import Tensor
from transformers import (
    BertModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)
from typer.testing import CliRunner
from zoo import inputs, network, outputs

import greenformers
from greenformers.changes import Heal, Int8, LowRank, Width
from greenformers.solve.hidden_width import hidden_width
from greenformers.solve.narrow import exchanged
from greenformers.solve.norms import norm_form
from greenformers.solve.rotation import principal, rotate

SIZES: dict[str, Any] = {"vocab_size": 53, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}


def tiny_model(name: str) -> PreTrainedModel:
    """A tiny network in float64 whose norms have weights and biases far from 1 and 0."""
    torch.manual_seed(0)
    if name == "opt":
        model: Any = OPTForCausalLM(OPTConfig(**SIZES, ffn_dim=44, word_embed_proj_dim=32))
    elif name == "neox":
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, intermediate_size=44))
    else:
        return lively(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double().eval()


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "neox", "vit"])
def test_a_rotation_of_all_coordinates_changes_nothing(name: str) -> None:
    model, batch = tiny_model(name), texts(1)[0] if name != "vit" else inputs("vit")
    batch = {key: x.double() if x.is_floating_point() else x for key, x in batch.items()}
    expected = outputs(model, batch)[0]
    Q = torch.linalg.qr(torch.randn(32, 32, dtype=torch.float64)).Q
    with exchanged(model) as exchange:
        rotate(exchange, hidden_width(model, batch, shared=False), Q)
    assert sum(type(part) is torch.nn.RMSNorm for part in model.modules()) == 5 - 2 * (name == "vit")
    torch.testing.assert_close(outputs(model, batch)[0], expected, rtol=1e-5, atol=1e-5)


def test_a_llama_that_is_cut_is_one_whose_stream_is_projected() -> None:
    """The norms of the dense network read x Q Q^T in place of x; the mean square of what is left is over all of d."""
    model, batches = tiny_model("llama"), texts()
    dense = copy.deepcopy(model)
    greenformers.compress(model, Width(0.75, refit=False), calibration=batches)

    norms = [path for path, _ in dense.named_modules() if path.endswith("norm")]
    rows: list[Tensor] = []
    handles = [
        dense.get_submodule(path).register_forward_pre_hook(lambda _, args: rows.append(args[0])) for path in norms
    ]
    C = torch.zeros(32, 32, dtype=torch.float64)
    for batch in batches:
        rows.clear()
        outputs(dense, batch)
        for x in rows:
            for row in x[batch["attention_mask"].bool()]:
                unit = row / row.square().mean().sqrt()
                C += torch.outer(unit, unit)
    for handle in handles:
        handle.remove()
    vectors = torch.linalg.svd(C).U[:, :24]
    P = vectors @ vectors.T
    for path in norms:
        dense.get_submodule(path).register_forward_pre_hook(lambda _, args: (args[0] @ P,))
    for batch in batches[:2]:
        mask = batch["attention_mask"].bool()
        ours, theirs = outputs(model, batch)[0][mask], outputs(dense, batch)[0][mask]
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert model.config.hidden_size == model.get_input_embeddings().weight.shape[1] == 24
    assert model.config.head_dim == 8
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight
    ids = inputs("llama")["input_ids"]
    more = {"attention_mask": torch.ones_like(ids), "do_sample": False, "min_new_tokens": 6, "max_new_tokens": 6}
    assert model.generate(ids, **more).equal(model.generate(ids, **more, use_cache=False))


@pytest.mark.slow
def test_what_is_rotated_is_read_again(tmp_path: Path) -> None:
    """Norms of another kind, a head with a bias and apart from the embedding, and one cut after the other."""
    models = []
    for name in ("gpt2", "llama", "vit"):
        model = network(name)
        greenformers.compress(model, [Width(0.75)], calibration=[inputs(name)])
        models.append((name, name, model))
    again = network("gpt2")
    greenformers.compress(again, [Width(0.75), Width(0.7), Int8()], calibration=[inputs("gpt2")])
    assert again.get_input_embeddings().weight.shape == (53, 16)
    for name, read in read_again(tmp_path, [*models, ("twice", "gpt2", again)]).items():
        assert read["after"]["difference"] == 0, name
        assert read["after"]["keys"] == {}, name
        assert read["after"]["parameters"] == sum(x.numel() for x in read["model"].parameters())
        assert read["after"].get("cached") == read["after"].get("uncached")


def test_deletion_is_layer_norms_over_what_stays() -> None:
    """The dense network with hidden states of 0 at the other coordinates, whose norms see 24 of 32 numbers."""
    model, batches = lively("bert"), texts()
    masked = copy.deepcopy(model)
    greenformers.compress(model, Width(0.75, by="deletion", refit=False), calibration=batches)
    old, new = (x.get_input_embeddings().weight.detach() for x in (masked, model))
    left = torch.tensor([next(j for j in range(32) if old[:, j].equal(column)) for column in new.T])
    mask = torch.zeros(32, dtype=torch.float64).index_fill(0, left, 1)

    def normalise(norm: Any, args: tuple[Tensor, ...], _: Tensor) -> Tensor:
        out = torch.zeros_like(args[0])
        for at in range(len(left)):  # coordinate by coordinate, as the formula
            j = left[at]
            values = args[0][..., left]
            mean = values.sum(-1) / 24
            variance = (values - mean[..., None]).square().sum(-1) / 24
            out[..., j] = (args[0][..., j] - mean) / (variance + norm.eps).sqrt() * norm.weight[j] + norm.bias[j]
        return out * mask

    for part in masked.modules():
        if isinstance(part, torch.nn.LayerNorm):
            part.register_forward_hook(normalise)
    torch.testing.assert_close(outputs(model, batches[0]), outputs(masked, batches[0]), rtol=1e-6, atol=1e-6)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_coordinates_that_stay_have_most_fisher_information() -> None:
    """Gates for each text, on all coordinates of one norm after the other, at positions that are no padding."""
    model, batches = lively("bert"), texts(3)
    felt = torch.zeros(32, dtype=torch.float64)
    for norm in (part for part in model.modules() if isinstance(part, torch.nn.LayerNorm)):
        for number, batch in enumerate(batches):
            draw = torch.Generator().manual_seed(Random(f"0 {number}").getrandbits(32))
            gates = torch.ones(3, 1, 32, dtype=torch.float64, requires_grad=True)
            mask = batch["attention_mask"][..., None]
            handle = norm.register_forward_hook(
                lambda _, __, out, gates=gates, mask=mask: out * (1 + mask * (gates - 1))
            )
            logits = model(**batch).logits
            handle.remove()
            v = torch.randn(logits.shape, generator=draw).double()
            (slope,) = torch.autograd.grad((v * logits).sum(), gates)
            felt += slope.square().sum((0, 1))
    old = model.get_input_embeddings().weight.detach().clone()
    greenformers.compress(model, Width(0.75, by="deletion", refit=False), calibration=batches)
    left = felt.topk(24).indices.sort().values
    torch.testing.assert_close(model.get_input_embeddings().weight.detach(), old[:, left], rtol=0, atol=0)


@pytest.mark.parametrize(("name", "by"), [("llama", "rotation"), ("bert", "deletion")])
def test_fitted_layers_come_nearer(name: str, by: str) -> None:
    dense, batches = lively(name), texts(12)
    distances = []
    for refit in (True, False):
        model = copy.deepcopy(dense)
        greenformers.compress(model, Width(0.75, by=by, refit=refit), calibration=batches)
        distances.append(sum(
            (outputs(model, batch)[0] - outputs(dense, batch)[0])[batch["attention_mask"].bool()].square().sum().item()
            for batch in batches
        ))  # fmt: skip
    assert distances[0] < distances[1]


@pytest.mark.parametrize(("name", "by"), [("llama", "rotation"), ("bert", "deletion")])
def test_nothing_depends_on_what_stands_at_the_padding(name: str, by: str) -> None:
    models = [lively(name, num_hidden_layers=1) for _ in range(2)]
    for model, garbage in zip(models, (3, 40), strict=True):
        greenformers.compress(model, Width(0.75, by=by), calibration=texts(garbage=garbage))
    ours, theirs = (outputs(model, texts(1)[0])[0][texts(1)[0]["attention_mask"].bool()] for model in models)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)  # eigenvectors have no sign


def test_eps_counts_as_in_the_network() -> None:
    """SliceGPT's own code takes 1e-5 for every network."""
    model = network("llama", rms_norm_eps=0.3).double()
    form = norm_form(model.model.norm)
    assert form is not None
    assert form.eps == 0.3
    width, batch = hidden_width(model, inputs("llama"), shared=False), inputs("llama")
    expected = outputs(model, batch)[0]
    with exchanged(model) as exchange:
        rotate(exchange, width, torch.eye(32, dtype=torch.float64))
    torch.testing.assert_close(outputs(model, batch)[0], expected)
    greenformers.compress(model, Width(0.75, refit=False), calibration=[batch])
    assert model.model.norm.eps == pytest.approx(0.3 * 32 / 24)


def test_energy_is_largest_first() -> None:
    model, batches = lively("gpt2"), texts()
    vectors, energy = principal(model, hidden_width(model, batches[0], shared=False), batches)
    assert energy.diff().max() <= 0
    # The mean of a LayerNorm's input is no direction of the stream.
    torch.testing.assert_close(vectors.sum(0)[:31], torch.zeros(31, dtype=torch.float64), rtol=0, atol=1e-6)
    assert energy[31] < 1e-9 * energy[0]


def test_a_narrower_student_learns_from_its_teacher() -> None:
    batch = inputs("bert")
    model = network("bert", "BertModel")
    report = greenformers.compress(
        model, [Width(0.75, by="deletion"), Heal(40, batch_size=8, learning_rate=3e-3)],
        calibration=[batch], examples=[{"input_ids": row} for row in inputs("bert", 40)["input_ids"]],
    )  # fmt: skip
    log = [entry["eval_distance"] for entry in report.steps[1].report.log if "eval_distance" in entry]
    assert log[-1] < log[0]


def test_refusals_leave_everything_as_it_was() -> None:
    for wrong, said in (
        ({"keep": 1.0}, r"width to keep must be a share in \(0, 1\), got 1.0"),
        ({"by": "chance"}, "width by must be of rotation, deletion; got 'chance'"),
        ({"multiple": 0}, "multiple must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=said):
            Width(**wrong)
    mixtral = MixtralForCausalLM(
        MixtralConfig(**SIZES, intermediate_size=44, num_key_value_heads=2, num_local_experts=2)
    ).eval()
    cases: list[tuple[PreTrainedModel, Width, str]] = [
        (network("bert"), Width(), "post-norm.*deletion"),
        (network("gpt2", "GPT2Model"), Width(), "no linear layer that reads ln_f and could take in its weight"),
        (network("clip"), Width(by="deletion"), "CLIPModel has several hidden widths"),
        (network("wav2vec2"), Width(by="deletion"), "Wav2Vec2ForCTC uses its hidden states .* not understood"),
        (mixtral, Width(by="deletion"), "not understood, perhaps in model.layers.0.mlp.gate"),
        (network("llama"), Width(0.9, multiple=16), "fewer than all 32 hidden coordinates in multiples of 16, got 0.9"),
    ]
    for model, change, said in cases:
        name = next((name for name in ("clip", "wav2vec2") if name in model.config.model_type), "bert")
        before = [(path, type(part), *map(id, part.parameters())) for path, part in model.named_modules()]
        values = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match=said):
            greenformers.compress(model, change, calibration=[inputs(name)])
        assert [(path, type(part), *map(id, part.parameters())) for path, part in model.named_modules()] == before
        torch.testing.assert_close(model.state_dict(), values, rtol=0, atol=0)
    with pytest.raises(ValueError, match="width cannot follow low_rank, which leaves no dense weights"):
        greenformers.compress(network("bert"), [LowRank(0.5), Width(by="deletion")], calibration=[inputs("bert")])
    with pytest.raises(ValueError, match=r"width 0\.75 needs examples to calibrate with"):
        greenformers.compress(network("llama"), Width())


def test_states_and_vectors_are_narrower_and_nothing_else() -> None:
    model = network("bert", "BertModel")
    assert isinstance(model, BertModel)
    greenformers.compress(model, Width(0.75, by="deletion"), calibration=[inputs("bert")])
    out = model(**inputs("bert"))
    assert (out.last_hidden_state.shape[-1], out.pooler_output.shape[-1]) == (24, 32)


def test_a_narrower_sentence_encoder_is_judged_by_its_own_cosines(tmp_path: Path) -> None:
    from greenformers.cli import application

    model, texts_of_pairs, out = folder(tmp_path, "bert", "BertModel"), pairs(tmp_path / "pairs.tsv"), tmp_path / "out"
    words = ["compress", model, "--texts", texts_of_pairs, "--width", "0.75", "--width-by", "deletion", "--evaluate",
             texts_of_pairs, "--lengths", "", "--out", out]  # fmt: skip
    done = CliRunner().invoke(application(), [str(word) for word in words])
    assert done.exit_code == 0, done.output
    rows = {row.split("|")[1].strip(): row.split("|")[3:-1] for row in (out / "README.md").read_text().splitlines()
            if row.count("|") == 5}  # fmt: skip
    (original, narrow), (ours, none) = (
        [float(x.split()[0]) if x.strip() else None for x in rows[label]]
        for label in ("Spearman's correlation", "Cosine to dense")
    )
    assert original is not None and narrow is not None  # noqa: PT018
    assert (ours, none) == (1, None)
