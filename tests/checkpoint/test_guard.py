"""Who does not know greenformers is stopped, and does not go on with weights drawn at random."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer, TrainingArguments
from zoo import ZOO, inputs, network, outputs

import greenformers
from greenformers.changes import Attention, Change, Int8, Layers, LowRank
from greenformers.checkpoint.description import Description
from greenformers.checkpoint.structure import structure

STRANGER = """
import json, sys, transformers
found = {}
for folder in sys.argv[1:]:
    for cls in ("AutoModel", json.load(open(folder + "/config.json"))["architectures"][0]):
        try:
            getattr(transformers, cls).from_pretrained(folder)
            found[folder + " " + cls] = "loaded"
        except RuntimeError as error:
            found[folder + " " + cls] = str(error)
print(json.dumps(found))
"""
RECIPES: dict[str, list[Change]] = {
    "bert": [LowRank(keep=0.5)],
    "gpt2": [Int8()],
    "roberta": [Attention("sliding_window", options={"window": 2})],  # no weight of it is missing, and none too many
    "t5": [LowRank(keep=0.5, select=("embedding",))],
    "llama": [LowRank(keep=0.5), Int8()],
    "clip": [LowRank(keep=0.5)],
}


def changed(name: str) -> Any:
    model = network(name)
    greenformers.compress(model, RECIPES[name], example=inputs(name))
    return model


def test_a_stranger_is_stopped(tmp_path: Path) -> None:
    """It warned, drew weights at random and went on; with another attention it did not even warn."""
    for name in RECIPES:
        greenformers.save(changed(name), tmp_path / name)
    fewer = network("bert", num_hidden_layers=4)
    greenformers.compress(fewer, Layers(2))
    greenformers.save(fewer, tmp_path / "fewer")  # which any class builds: there is nothing to be stopped for
    folders = [str(tmp_path / name) for name in (*RECIPES, "fewer")]
    shown = subprocess.run(
        [sys.executable, "-c", STRANGER, *folders],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert shown.returncode == 0, shown.stderr
    for which, said in json.loads(shown.stdout).items():
        assert said == "loaded" if "/fewer " in which else "ignore_mismatched_sizes" in said, which
    assert "greenformers" in shown.stderr  # a kind of quantisation that it does not know


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_known_is_as_it_was(name: str, tmp_path: Path) -> None:
    model = changed(name)
    guards = structure(model).guards
    assert guards
    model.save_pretrained(tmp_path / "plain")  # by transformers itself
    state = load_file(tmp_path / "plain" / "model.safetensors")
    shapes = {key: x.shape for key, x in model.state_dict().items()}
    assert [key for key, x in state.items() if x.shape != shapes[key]] == sorted(guards)
    again = greenformers.load(tmp_path / "plain")
    assert {key: x.shape for key, x in again.state_dict().items()} == shapes
    assert all(
        out.equal(expected)
        for out, expected in zip(outputs(model, inputs(name)), outputs(again, inputs(name)), strict=True)
    )
    with torch.no_grad():
        for parameter in again.parameters():
            if parameter.is_floating_point():
                parameter.zero_()
    again.load_state_dict(state, strict=False)  # as the Trainer does
    assert outputs(again, inputs(name))[0].equal(outputs(model, inputs(name))[0])
    assert greenformers.load(greenformers.save(again, tmp_path / "twice")).config.quantization_config.guards == guards


def test_merged_nobody_is_stopped(tmp_path: Path) -> None:
    model = changed("bert")
    assert greenformers.merge(model)
    model.save_pretrained(tmp_path)
    shapes = {key: x.shape for key, x in load_file(tmp_path / "model.safetensors").items()}
    assert shapes["bert.embeddings.LayerNorm.weight"] == (32,)
    assert type(model).from_pretrained(tmp_path).state_dict().keys() == model.state_dict().keys()


def test_the_trainer_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    row = {"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8]}

    def losses(folder: Path, steps: int, resume: bool) -> list[float]:
        arguments = TrainingArguments(
            str(folder), max_steps=steps, per_device_train_batch_size=2, use_cpu=True, report_to="none",
            save_strategy="steps", save_steps=2, disable_tqdm=True, logging_steps=1, dataloader_pin_memory=False,
            lr_scheduler_type="constant", learning_rate=1e-2,
        )  # fmt: skip
        trainer = Trainer(changed("bert"), arguments, train_dataset=[row] * 8)
        trainer.train(resume_from_checkpoint=resume)
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    whole = losses(tmp_path / "whole", 4, False)
    assert losses(tmp_path / "parts", 2, False) == whole[:2]
    assert losses(tmp_path / "parts", 4, True) == whole
    assert len(set(whole)) == 4


@pytest.mark.parametrize("guards", [3, "bert", [1], {}])
def test_hostile_guards_are_refused(guards: Any) -> None:
    with pytest.raises(ValueError, match="must be a list of names"):
        Description.read({"changes": {}, "guards": guards})


def test_guards_of_another_network_are_left_alone(tmp_path: Path) -> None:
    folder = greenformers.save(changed("bert"), tmp_path / "out")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["guards"] += ["no.such.weight", "bert", "config"]
    path.write_text(json.dumps(config))
    assert outputs(greenformers.load(folder), inputs("bert"))[0].equal(outputs(changed("bert"), inputs("bert"))[0])
    assert ZOO["bert"]
