"""LoRA of PEFT on changed networks: who looks for linear layers finds those of a low-rank unit, and int8 ones."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from zoo import inputs, network, outputs

import greenformers
from greenformers.changes import Change, Int8, LowRank, Prune, Shrink, Sparse, Width
from greenformers.changes._units import ranks_of

peft = pytest.importorskip("peft")
# Of PEFT itself: a name of transformers that is to go, and a Conv1D that it finds by itself.
pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.filterwarnings("ignore:fan_in_fan_out")]

RECIPES: dict[str, Sequence[Change]] = {
    "low rank": [LowRank(keep=0.5)], "int8": [Int8()], "both": [LowRank(keep=0.5), Int8()],
    "prune": [Prune(0.6)], "shrink": [Shrink(0.6)], "width": [Width(0.75)],
    "sparse": [Sparse(by="magnitude")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("bert", "low rank"),
        ("gpt2", "low rank"),
        ("gpt2", "int8"),
        ("llama", "int8"),
        ("llama", "both"),
        ("bert", "prune"),
        ("gpt2", "prune"),
        ("llama", "shrink"),
        ("llama", "width"),
    ],
)
def test_lora_learns_beside_what_was_changed(name: str, recipe: str, tmp_path: Path) -> None:
    """LED was refused by name, and "all-linear" adapted one layer of fifty."""
    model, batch = network(name), inputs(name)
    greenformers.compress(model, RECIPES[recipe], calibration=[batch])
    greenformers.save(model, tmp_path / "small")
    before = outputs(model, batch)[0]
    paths = ranks_of(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=8, target_modules="all-linear"))
    adapters = {path.removeprefix("base_model.model.").removesuffix(".lora_A") for path, _ in adapted.named_modules()}
    inner = [path for path in paths if "head" not in path and "cls." not in path]
    assert {f"{path}.{factor}" for path in inner for factor in ("encoder", "decoder")} <= adapters
    assert recipe != "int8" or any(path.endswith(("query", "q_proj", "c_attn")) for path in adapters)
    learnt = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer, losses = torch.optim.AdamW(learnt, lr=1e-2), []
    for _ in range(4):
        loss = adapted(**batch, labels=batch["input_ids"]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    after = outputs(adapted.eval(), batch)[0]
    assert not torch.allclose(after, before, atol=1e-3)
    adapted.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(greenformers.load(tmp_path / "small"), tmp_path / "adapter").eval()
    assert outputs(again, batch)[0].equal(after)
    if "int8" not in [change.name() for change in RECIPES[recipe]]:
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(outputs(merged, batch)[0], after, rtol=1e-4, atol=1e-5)
        assert ranks_of(merged) == paths
        reloaded = greenformers.load(greenformers.save(merged, tmp_path / "merged"))
        assert outputs(reloaded, batch)[0].equal(outputs(merged, batch)[0])
    else:
        with pytest.raises(RuntimeError, match="this weight is computed from others, and cannot be written to"):
            adapted.merge_and_unload()
