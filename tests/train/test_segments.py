"""Training on a text in order, with a memory of the segments before."""

import os
import signal
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tiny import QUIET, SMALL, VERSE, verses
from torch import Tensor

from greenformers.model import GreenformerForCausalLM
from greenformers.model.memory import SegmentMemory
from greenformers.train import run
from greenformers.train.evaluate import written
from greenformers.train.fit import fit
from greenformers.train.generation import Writing, continuations
from greenformers.train.schedule import Schedule
from greenformers.train.settings import Settings
from greenformers.train.stream import Stream
from greenformers.train.text import mean_loss

MEMORY = 24


def settings(folder: Path, **more: object) -> Settings:
    given = SMALL | {"steps": 14, "save_every": 5, "variant": "transformer_xl", "memory": MEMORY, "learning_rate": 0.05}
    return Settings(**{"data": "tinyshakespeare", "folder": verses(folder), "objective": "causal_lm"} | given | more)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def test_each_row_of_the_batches_reads_a_stretch_in_order(tmp_path: Path) -> None:
    task = settings(tmp_path).task()
    blocks = task.objective.blocks("train").long()
    stream = Stream(task.objective, 4, 3 * 25, seed=0)
    steps = stream.steps_an_epoch
    seen = torch.stack([stream[index]["input_ids"] for index in range(2 * steps * 4)]).view(2, steps, 4, -1)
    for epoch in seen:
        assert torch.equal(epoch.transpose(0, 1).reshape(steps * 4, -1), blocks[: steps * 4])


@pytest.mark.parametrize("attention", ["transformer_xl", "compressive"])
def test_steps_are_on_top_of_what_the_steps_before_left(tmp_path: Path, attention: str) -> None:
    """Two trainings: ours, and a plain loop with the memory handed on by hand."""
    option = {"ratio": 3, "compressed": 4} if attention == "compressive" else None
    task = settings(tmp_path, variant=attention, option=option).task()
    model, other = task.network(), task.network()
    schedule = Schedule(
        steps=9, batch_size=12, learning_rate=0.05, warmup=0.0, weight_decay=0.0, decay=1.0, log_every=1
    )
    history = fit(model, task.objective, schedule, label="", console=Console(quiet=True))
    stream = Stream(task.objective, 12, 9, seed=0)
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.05, weight_decay=0.0)
    losses: list[float] = []
    assert stream.steps_an_epoch == 7  # a second epoch begins, with an empty memory
    for step in range(9):
        if step % stream.steps_an_epoch == 0:
            memory = SegmentMemory(MEMORY)
        batch = task.objective.collate([stream[12 * step + row] for row in range(12)])
        out = other.train()(**batch, memory=memory)
        memory = out.memory
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(out.loss.item())
    assert [loss for _, loss in history.curve("loss")] == pytest.approx(losses, rel=1e-3)


def test_a_prompt_is_read_alike_beside_longer_ones(tmp_path: Path) -> None:
    task = settings(tmp_path, memory=6).task()
    model, seen = task.network(), list[Tensor]()
    model.register_forward_hook(lambda _, __, out: seen.append(out.logits[:, -1].clone()))
    continuations(model, task.tokenizer, [VERSE, VERSE[5:40]], new_tokens=1)
    together = seen[-1][1]
    continuations(model, task.tokenizer, [VERSE[5:40]], new_tokens=1)
    torch.testing.assert_close(together, seen[-1][0], rtol=1e-4, atol=1e-5)


def test_a_stopped_run_goes_on_with_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Signal(run._Metrics):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 7:
                os.kill(os.getpid(), signal.SIGTERM)

    plain = settings(tmp_path / "text", variant="compressive", option={"ratio": 3, "compressed": 4})
    run.start(tmp_path / "whole", plain, QUIET)
    with monkeypatch.context() as patch:
        patch.setattr(run, "_Metrics", Signal)
        assert run.start(tmp_path / "parts", plain, QUIET).history.stopped == signal.SIGTERM
    stored = load_file(next((tmp_path / "parts" / "checkpoints").glob("step-8")) / "memory.safetensors")
    assert stored["recent.0"].shape[:2] == (4, MEMORY + 2)  # as threes are compressed
    began = []

    class Begun(run._Metrics):
        def on_train_begin(self, args, state, control, **given):
            began.append(state.global_step)
            super().on_train_begin(args, state, control, **given)

    monkeypatch.setattr(run, "_Metrics", Begun)
    run.resume(tmp_path / "parts", QUIET)
    assert began == [8]
    assert all(
        torch.equal(tensor, weights(tmp_path / "parts")[name]) for name, tensor in weights(tmp_path / "whole").items()
    )


def test_evaluation_remembers(tmp_path: Path) -> None:
    task = settings(tmp_path).task()
    model = task.network().eval()
    assert isinstance(model, GreenformerForCausalLM)
    blocks = task.objective.blocks("valid").long()
    memory, total = SegmentMemory(MEMORY), 0.0
    with torch.no_grad():
        for block in blocks:
            out = model(block[None], labels=block[None], memory=memory, num_items_in_batch=1)
            memory, total = out.memory, total + out.loss.item()
    expected = total / (len(blocks) * 15)
    for rows in (1, 4, 64):
        assert mean_loss(model, task.objective, "valid", rows) == pytest.approx(expected)
    assert mean_loss(model, task.objective, "valid", 1, memory=0) != pytest.approx(expected, rel=1e-6)
    assert mean_loss(model, task.objective, "valid", 1, memory=1000) != pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"memory": -1}, "memory must be at least 0, got -1"),
        ({"objective": "masked_lm"}, "memory is for causal_lm, the objective is masked_lm; got 24"),
        ({"variant": "transformer"}, "memory_length is for a single stack of attention with positions of its own"),
        ({"accumulate": 2}, "memory needs one process and accumulate 1"),
    ],
)
def test_what_cannot_remember_is_refused(tmp_path: Path, more: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run.start(tmp_path / "out", settings(tmp_path / "text", **more), QUIET)
    assert not (tmp_path / "out" / "model").exists()


def test_a_long_prompt_is_read_in_segments(tmp_path: Path) -> None:
    """As the whole of it, where all is remembered, and however texts of different length are padded."""
    task = settings(tmp_path, memory=1000).task()
    model = task.network()
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = (
            0  # so that no text ends early: the token has the same logit everywhere
        )
    prompts = [VERSE, VERSE[5:40]]
    told = continuations(model, task.tokenizer, prompts, new_tokens=9)
    for prompt, text in zip(prompts, told, strict=True):
        assert text.startswith(prompt)
        assert len(text) == len(prompt) + 9
        assert continuations(model, task.tokenizer, [prompt], new_tokens=9) == [text]
        ids = task.tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
        model.config.max_position_embeddings = 200  # for the whole at once
        plain = model.eval().generate(ids, max_new_tokens=9, do_sample=False, use_cache=False)
        model.config.max_position_embeddings = 16
        assert task.tokenizer.decode(plain[0]) == text
    assert continuations(model, task.tokenizer, [VERSE], new_tokens=5, writing=Writing(beams=3))[0].startswith(VERSE)


def test_a_prompt_longer_than_what_is_read_at_once_goes_on(tmp_path: Path) -> None:
    run.start(tmp_path / "out", settings(tmp_path / "text", steps=1), QUIET)
    (text,) = written(tmp_path / "out", [VERSE], seed=0, max_new_tokens=None)
    assert len(text) == len(VERSE) + 100
