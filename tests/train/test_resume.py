"""A run that is stopped and goes on ends with the same weights, to the bit, and the same curve."""

from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import TrainerCallback

from greenformers.data import Examples, Labelled, Pairs, Text, load_images, train_tokenizer
from greenformers.train.causal_lm import CausalLM
from greenformers.train.classification import ImageClassification, TextClassification
from greenformers.train.fit import fit
from greenformers.train.masked_lm import MaskedLM
from greenformers.train.replaced_token_detection import ReplacedTokenDetection
from greenformers.train.schedule import Schedule
from greenformers.train.seq2seq import Seq2Seq

QUIET = Console(quiet=True)
STORY = "the cat sat on the mat and the dog sat on the cat until the mat was flat\n" * 20
SIZES = {"hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 20, "num_hidden_layers": 2, "rank": 3}
STEPS, FEWER, SAVE_EVERY = 11, 6, 3


def objective(name: str):
    words = STORY.split()
    sentences = [" ".join(words[i : i + 3 + i % 5]) for i in range(24)]
    tokenizer = train_tokenizer("characters", [STORY], max_length=32)
    text = Text("story", STORY, STORY[:225], STORY[:225])
    if name == "images":
        return ImageClassification(load_images("digits", limit=60, pool=2))
    if name == "seq2seq":
        pairs = [(sentence, sentence[::-1]) for sentence in sentences]
        return Seq2Seq(Pairs("story", "en", "ne", pairs, pairs[:5], pairs[:5]), tokenizer, 32)
    if name == "texts":
        examples = Examples([(sentence,) for sentence in sentences], [i % 2 for i in range(24)])
        few = Examples([(sentence,) for sentence in sentences[:5]], [i % 2 for i in range(5)])
        return TextClassification(Labelled("story", ("no", "yes"), examples, few, few), tokenizer, 32)
    return {"masked": MaskedLM, "causal": CausalLM, "replaced": ReplacedTokenDetection}[name](text, tokenizer, 24)


class KilledError(Exception):
    pass


class StopAt(TrainerCallback):
    """What kill -9 leaves: nothing of the step under way."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_optimizer_step(self, args, state, control, **_):
        if state.global_step == self.step:
            raise KilledError


def run(name: str, folder: Path, stop: int | None = None, *, resume: bool = False, slots=None, steps=STEPS, **options):
    # Other weights than those of the run before: what is resumed must come from the checkpoint alone.
    torch.manual_seed(1 if resume else 0)
    task = objective(name)
    model = task.build(task.config(**SIZES | (slots or {})))
    schedule = Schedule(
        steps=steps, batch_size=6, learning_rate=0.01, save_every=SAVE_EVERY, evaluate_every=4, log_every=2, **options
    )
    callbacks = () if stop is None else (StopAt(stop),)
    history = fit(model, task, schedule, label="", console=QUIET, folder=folder, resume=resume, callbacks=callbacks)
    return {key: value.clone() for key, value in model.state_dict().items()}, history


@pytest.mark.parametrize("name", ["masked", "causal", "replaced", "seq2seq", "texts", "images"])
def test_to_the_bit(name: str, tmp_path: Path) -> None:
    expected, history = run(name, tmp_path / "whole")
    for stop in (4, 8):  # a step and two after a checkpoint
        with pytest.raises(KilledError):
            run(name, tmp_path / "stopped", stop, resume=stop > 4)
    weights, resumed = run(name, tmp_path / "stopped", resume=True)
    assert all(torch.equal(weights[key], value) for key, value in expected.items())
    assert resumed.log == history.log


DEPTHS = {
    "universal": {"tau": 0.1},
    "aligned": {"halting": "geometric"},
    "mixed": {"train": "mixed", "paths": 2},
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("masked", "universal"),
        ("causal", "universal"),
        ("seq2seq", "universal"),
        ("seq2seq", "aligned"),
        ("causal", "mixed"),
    ],
)
def test_to_the_bit_where_each_position_has_its_depth(name: str, options: str, tmp_path: Path) -> None:
    depth = "universal" if options == "universal" else "adaptive"
    given = {"slots": {"depth": depth, "num_hidden_layers": 4, "depth_options": DEPTHS[options]}, "steps": FEWER}
    expected, history = run(name, tmp_path / "whole", **given)
    with pytest.raises(KilledError):
        run(name, tmp_path / "stopped", 5, **given)
    weights, resumed = run(name, tmp_path / "stopped", resume=True, **given)
    assert all(torch.equal(weights[key], value) for key, value in expected.items())
    assert resumed.log == history.log


KINDS = {
    "switch": {"feed_forward": "switch", "feed_forward_options": {"experts": 3, "k": 2}},  # whose router sees jitter
    "lite": {"block": "lite"},
    "evolved": {"block": "evolved"},
    "independent": {"block": "independent"},
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("texts", "switch"),
        ("causal", "switch"),
        ("causal", "lite"),
        ("seq2seq", "lite"),
        ("masked", "evolved"),
        ("seq2seq", "evolved"),
        ("causal", "independent"),
        ("seq2seq", "switch"),
    ],
)
def test_to_the_bit_with_experts_and_blocks(name: str, kind: str, tmp_path: Path) -> None:
    given = {"slots": KINDS[kind], "steps": FEWER}
    expected, history = run(name, tmp_path / "whole", **given)
    with pytest.raises(KilledError):
        run(name, tmp_path / "stopped", 5, **given)
    weights, resumed = run(name, tmp_path / "stopped", resume=True, **given)
    assert all(torch.equal(weights[key], value) for key, value in expected.items())
    assert resumed.log == history.log


def test_another_seed_ends_elsewhere(tmp_path: Path) -> None:
    (first, _), (second, _) = (run("masked", tmp_path / str(seed), seed=seed) for seed in (0, 1))
    assert any(not torch.equal(value, second[key]) for key, value in first.items())


@pytest.mark.parametrize(
    "options",
    [{"accumulate": 3, "clip": 0.0}, {"precision": "bf16", "recompute": True}, {"patience": 1}, {"optimizer": "muon"}],
    ids=str,
)
def test_with_every_feature(tmp_path: Path, options: dict) -> None:
    expected, history = run("masked", tmp_path / "whole", **options)
    with pytest.raises(KilledError):
        run("masked", tmp_path / "stopped", 5, **options)
    weights, resumed = run("masked", tmp_path / "stopped", resume=True, **options)
    assert all(torch.equal(weights[key], value) for key, value in expected.items())
    assert resumed.log == history.log


def test_without_any_checkpoint_it_begins_anew(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        run("masked", tmp_path, 1)
    _, history = run("masked", tmp_path, resume=True)
    assert history.steps == STEPS


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        run("masked", tmp_path, 4)
    with pytest.raises(ValueError, match="the weights of another network than the run's settings describe"):
        run("causal", tmp_path, resume=True)


def test_nothing_in_a_checkpoint_could_execute(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        run("masked", tmp_path, 4)
    files = sorted(path.name for path in (tmp_path / "step-3").iterdir())
    assert files == [
        "manifest.json", "model.safetensors", "optimizer.safetensors", "schedule.json", "trainer_state.json",
    ]  # fmt: skip
