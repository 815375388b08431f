"""Texts that a teacher writes itself: how they begin and end, that they are its own, and that they stay."""

import copy
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel
from zoo import network

from greenformers.changes import Given, Heal, _samples
from greenformers.changes._samples import PROMPT, written
from greenformers.data._rows import Rows


def blocks(count: int = 24, length: int = 20) -> Rows:
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 53, (count, length), generator=draw)
    return Rows([{"input_ids": x, "attention_mask": torch.ones_like(x)} for x in ids], lengths=[length] * count)


def pairs(count: int = 24) -> Rows:
    draw = torch.Generator().manual_seed(3)
    rows = []
    for number in range(count):
        source, target = (torch.randint(3, 53, (4 + number % 5,), generator=draw) for _ in range(2))
        rows.append(
            {
                "input_ids": source, "attention_mask": torch.ones_like(source), "labels": target,
                "decoder_attention_mask": torch.ones_like(target),
            }
        )  # fmt: skip
    return Rows(rows, filler={"input_ids": 0}, lengths=[len(row["input_ids"]) for row in rows])


def certain(name: str) -> PreTrainedModel:
    """A network with large weights, so that what it writes is seen to be its own."""
    model = network(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(12)
    return model


@torch.no_grad()
def surprise(model: PreTrainedModel, rows: Rows) -> float:
    """The mean loss on what follows the beginnings."""
    losses = []
    for row in rows:
        logits = model(input_ids=row["input_ids"][None]).logits[0, PROMPT - 1 : -1]
        losses.append(cross_entropy(logits, row["input_ids"][PROMPT:], reduction="none"))
    return torch.cat(losses).mean().item()


def test_a_language_model_goes_on_by_its_own_probabilities() -> None:
    teacher, texts = certain("llama"), blocks()
    samples = written(teacher, texts, 40, seed=1)
    begun = {tuple(row["input_ids"][:PROMPT].tolist()) for row in texts}
    assert len(samples) == 40
    for row in samples:
        ids = row["input_ids"].tolist()
        assert tuple(ids[:PROMPT]) in begun
        assert len(ids) == 20 or ids[-1] == 2
        assert 2 not in ids[PROMPT:-1]
        assert row["attention_mask"].shape == row["input_ids"].shape
    # 40 of 24: each once at least.
    assert len({tuple(row["input_ids"][:PROMPT].tolist()) for row in samples}) == 24
    assert surprise(teacher, samples) < 0.7 * surprise(teacher, texts)
    again, other = (written(teacher, texts, 40, seed=seed) for seed in (1, 2))
    assert all(a["input_ids"].equal(b["input_ids"]) for a, b in zip(samples, again, strict=True))
    assert not all(a["input_ids"].equal(b["input_ids"]) for a, b in zip(samples, other, strict=True))


def test_an_encoder_decoder_writes_targets_by_beam_search() -> None:
    teacher, sources = certain("bart"), pairs()
    samples = written(teacher, sources, 24, seed=1)
    by_source = {tuple(row["input_ids"].tolist()): row for row in sources}
    assert len(samples) == 24
    ended = 0
    for row in samples:
        assert tuple(row["input_ids"].tolist()) in by_source
        # Longer ones of a batch may end elsewhere than at its length.
        if int(row["labels"][-1]) == 2:
            ended += 1
            out = teacher.generate(
                input_ids=row["input_ids"][None], attention_mask=row["attention_mask"][None], num_beams=4,
                do_sample=False, max_new_tokens=len(row["labels"]),
            )  # fmt: skip
            assert out[0, 1:].tolist()[: len(row["labels"])] == row["labels"].tolist()
        assert row["decoder_attention_mask"].shape == row["labels"].shape
    assert ended > 0


def test_what_was_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, texts = certain("llama"), blocks()
    whole = written(teacher, texts, 40, seed=1)

    def stop(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        written(teacher, texts, 40, seed=1, folder=tmp_path, progress=stop)
    done = len(list(tmp_path.glob("*.safetensors")))
    calls = []
    plain = _samples._write
    monkeypatch.setattr(_samples, "_write", lambda *given: calls.append(1) or plain(*given))
    parts = written(teacher, texts, 40, seed=1, folder=tmp_path)
    assert (done, len(calls)) == (2, 1)
    assert all(a["input_ids"].equal(b["input_ids"]) for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_a_student_is_healed_by_them(name: str) -> None:
    teacher = certain(name)
    small = copy.deepcopy(teacher)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    rows = blocks() if name == "llama" else pairs()
    healing = Heal(steps=20, batch_size=8, learning_rate=3e-3, samples=32)
    given = Given(training=rows, teacher=teacher)
    healing.check(small, [], given)
    report = healing.apply(small, given)
    log = [entry["eval_distance"] for entry in report.log if "eval_distance" in entry]
    assert log[-1] < 0.8 * log[0]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="samples must be at least 2, got 1"):
        Heal(samples=1)
    bert, llama = network("bert"), network("llama")
    given = Given(training=blocks(), teacher=bert)
    with pytest.raises(ValueError, match="BertForMaskedLM writes no texts"):
        Heal(batch_size=8, samples=9).check(bert, [], given)
    given = Given(training=blocks(length=PROMPT), teacher=llama)
    with pytest.raises(ValueError, match=r"samples begin with 8 tokens of a text .*: all texts are shorter"):
        Heal(batch_size=8, samples=9).check(llama, [], given)
    given = Given(training=blocks(), teacher=llama)
    with pytest.raises(ValueError, match="samples must be at least a batch of 8, got 7"):
        Heal(batch_size=8, samples=7).check(llama, [], given)
