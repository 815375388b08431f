"""The parts of the arena: names of variants, inputs, restoring, windows of the same compute, baselines, sizes."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from short import COUNTS, drawn, expressions

from greenformers.arena.baselines import _hashes, baselines, first_token, ngrams
from greenformers.arena.cell import PRETRAINING, TRAINING, Cell, Settings, folder_of, tried
from greenformers.arena.grid import Plan, _Speed, baselines_of, planned
from greenformers.arena.inputs import of_images, of_texts
from greenformers.arena.lock import locked
from greenformers.arena.objectives import Classification, Restoration
from greenformers.arena.options import SIZES, Grid
from greenformers.arena.probe import Probes, network
from greenformers.arena.protocol import TASKS, task_of
from greenformers.arena.records import records_of
from greenformers.arena.speed import SPEED
from greenformers.arena.variants import BASELINE, WINDOW, Variant, every
from greenformers.arena.windows import control, window_of
from greenformers.data import Labelled, Split, Splits
from greenformers.data._kinds import Examples
from greenformers.measure.limit import OutOfMemory
from greenformers.measure.newest import newest
from greenformers.measure.record import Record, append
from greenformers.model.loss import IGNORED
from greenformers.train.stream import generator

ALL = dict.fromkeys(("train", "valid", "test"))


def photographs() -> Splits:
    pixels = torch.arange(6 * 4, dtype=torch.uint8).reshape(6, 4) * 10
    split = Split(pixels, torch.tensor([0, 1, 0, 1, 0, 1]), 255)
    return Splits("made", 2, split, split, split)


# Names of variants.


def test_every_mechanism_and_block_is_a_variant() -> None:
    names = every()
    assert names[0] == BASELINE
    assert {"linformer", "performer", "star", "isab"} <= set(names)
    assert "full" not in names, "which is the baseline"
    for name in names:
        Variant.of(name)


def test_a_name_with_options_turns_and_a_position() -> None:
    variant = Variant.of("sliding_window:window=5/transformer:position=rotary")
    own = variant.slots(layers=3, rank=4, keeps=16)
    assert own["attention"] == ["sliding_window", "full", "sliding_window"]
    assert own["attention_options"] == [{"window": 5}, None, {"window": 5}]
    assert (own["position"], own["residual"]) == ("rotary", "pre")
    assert Variant.of("linformer").slots(layers=2, rank=4, keeps=7)["attention_options"] == {"k": 7}
    assert Variant.of("star").slots(layers=2, rank=4, keeps=7)["residual"] == "post"


@pytest.mark.parametrize(
    ("name", "said"),
    [("linformr", "variant must be one of"), ("linformer:k", "must be NAME=VALUE"),
     ("linformer:window=3", "options of linformer must be of"), ("star/linformer", "only attentions can take turns"),
     ("transformer:window=3", "takes no option but position"), ("narrow", "variant must be one of"),
     ("narrow:position=rotary", "variant must be one of"), ("narrow/linformer", "variant must be one of")],
)  # fmt: skip
def test_wrong_names_are_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Variant.of(name)


# Inputs and objectives.


def test_black_pixels_are_ids_like_any_other() -> None:
    inputs = of_images(photographs(), "bytes", 5, ALL)
    first = inputs.rows["train"][0].tolist()
    assert first == [inputs.tokenizer.cls_token_id, 5, 15, 25, 35]  # byte b is 5 + b
    objective = Classification(inputs)
    batch = objective.collate([objective.example("train", at, generator(at)) for at in range(3)])
    assert "attention_mask" not in batch, "nothing is padded"
    assert batch["input_ids"].shape == (3, 5)


def test_padding_is_never_pooled_but_where_a_batch_is_padded_it_is_masked() -> None:
    inputs = of_texts(expressions(), "words", 40, ALL)
    objective = Classification(inputs)
    rows = [objective.example("test", at, generator(at)) for at in range(7)]
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    for pooling in ("mean", "cls"):
        model = objective.build(objective.config(**sizes, pooling=pooling)).eval()
        batch = objective.collate(rows)
        assert not batch["attention_mask"].all()
        together = model(**batch).logits
        alone = torch.cat([model(**objective.collate([row])).logits for row in rows])
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_so_many_tokens_are_restored_and_no_special_one(share: float) -> None:
    inputs = of_texts(expressions(), "words", 40, ALL)
    objective = Restoration(inputs, share)
    for at in range(10):
        row, example = inputs.rows["train"][at].long(), objective.example("train", at, generator(3, at))
        masked = example["labels"] != IGNORED
        plain = ~inputs.special(row)
        assert int(masked.sum()) == max(1, round(share * int(plain.sum())))
        assert not (masked & ~plain).any()
        assert torch.equal(example["labels"][masked], row[masked])
        assert torch.equal(example["input_ids"][~masked], row[~masked])
    again = objective.example("train", 0, generator(3, 0))
    assert torch.equal(again["input_ids"], objective.example("train", 0, generator(3, 0))["input_ids"])
    with pytest.raises(ValueError, match="share must be above 0"):
        Restoration(inputs, 0.0)


def test_the_shares_are_those_of_the_paper() -> None:
    shares = {name: task.masked for name, task in TASKS.items()}
    assert shares == {
        "listops": 0.1, "text": 0.15, "retrieval": 0.15, "pixels": 0.5, "pathfinder": 0.5, "path_x": 0.5
    }  # fmt: skip


# Sizes.


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_a_network_and_a_schedule(task: str, size: str) -> None:
    grid = Grid(tasks=(task,), size=size)
    own = task_of(task).sizes[size]
    with torch.device("meta"):
        config = network(task, BASELINE, grid, length=8).config
    assert (config.hidden_size, config.num_hidden_layers) == (own.hidden, own.layers)
    before, after = (sum(Cell(task, BASELINE, 0, pre).steps(grid)) for pre in (False, True))
    assert before == after == own.steps, "as many steps with and without pre-training"
    for settings in Cell(task, BASELINE, 1, True).settings(grid, Path("out")).values():
        assert 0 < settings.schedule.warmup < 1
        assert settings.seed == 1


def test_a_pretrained_cell_starts_from_its_pretraining() -> None:
    runs = Cell("listops", "linformer", 2, True).settings(Grid(steps=11), Path("out"))
    assert list(runs) == [PRETRAINING, TRAINING]
    assert [own.steps for own in runs.values()] == [5, 6]
    assert runs[TRAINING].init == str(Path("out/listops/linformer/seed-2-pretrained") / PRETRAINING)
    assert runs[PRETRAINING].restores
    assert not runs[TRAINING].restores


def test_both_runs_have_the_same_network(tmp_path: Path) -> None:
    drawn(tmp_path)
    runs = Cell("listops", "linformer", 0, True).settings(Grid(), tmp_path)
    models = [settings.task().fresh() for settings in runs.values() if isinstance(settings, Settings)]
    names = [{name for name, _ in model.named_parameters() if name.startswith("encoder.")} for model in models]
    assert names[0] == names[1]
    assert names[0]


def test_real_data_need_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data must be the folder that holds the folder imdb, got none"):
        task_of("text").check(None)
    with pytest.raises(FileNotFoundError, match="cifar10_gray"):
        task_of("pixels").check(tmp_path)
    task_of("listops").check(None)


# Windows of the same compute.


def test_the_window_is_the_widest_that_costs_no_more() -> None:
    def cost(window: int) -> int:
        return 100 + 7 * window

    for most in range(90, 900, 13):
        fitting = [window for window in range(1, 100) if cost(window) <= most]
        expected = None if cost(99) <= most else max(fitting, default=1)
        assert window_of(most, 100, cost) == expected


def test_the_window_beside_a_mechanism_costs_as_much() -> None:
    probes = Probes(Grid())
    beside = control("nystromformer", 128, lambda name: probes.flops("listops", name))
    window = int(beside.rpartition("=")[2])
    most = probes.flops("listops", "nystromformer")
    assert probes.flops("listops", beside) <= most < probes.flops("listops", WINDOW.format(window + 1))
    assert control("transformer_xl", 128, lambda name: probes.flops("listops", name)) == BASELINE


# Baselines.


def test_the_root_operator_tells_more_than_the_commonest_class() -> None:
    inputs = of_texts(expressions(), "words", 40, ALL)
    right = baselines(inputs, root=True)
    assert list(right) == ["majority", "root operator", "n-grams"]
    labels = inputs.labels("train").tolist()
    commonest = max(sorted(set(labels)), key=labels.count)
    assert right["majority"].tolist() == [label == commonest for label in inputs.labels("test").tolist()]
    told = {}
    for operator in {text.split()[0] for (text,) in inputs.data.train.texts}:
        own = [
            label for (text,), label in zip(inputs.data.train.texts, labels, strict=True) if text.startswith(operator)
        ]
        told[operator] = Counter(own).most_common(1)[0][0]
    expected = [
        told[text.split()[0]] == label
        for (text,), label in zip(inputs.data.test.texts, inputs.data.test.labels, strict=True)
    ]
    assert first_token(inputs).tolist() == expected


def test_ngrams_tell_classes_by_runs_of_bytes() -> None:
    def split(count: int, seed: int) -> Examples:
        noise = torch.randint(97, 102, (count, 30), generator=generator(seed)).tolist()
        texts = [f"{bytes(row).decode()}{'xy' if at % 2 else 'yx'}" for at, row in enumerate(noise)]
        return Examples([(text,) for text in texts], [at % 2 for at in range(count)])

    data = Labelled("runs", ("a", "b"), split(60, 0), split(20, 1), split(30, 2))
    assert ngrams(of_texts(data, "bytes", 40, ALL)).double().mean() > 0.95


def test_ngrams_of_pairs_are_compared() -> None:
    def split(count: int, seed: int) -> Examples:
        rows = torch.randint(97, 123, (2 * count, 40), generator=generator(seed)).tolist()
        texts = [bytes(row).decode() for row in rows]
        pairs = [(texts[at], texts[at] if at % 2 else texts[count + at]) for at in range(count)]
        return Examples([(a, b) for a, b in pairs], [at % 2 for at in range(count)])

    data = Labelled("pairs", ("different", "same"), split(20, 3), split(10, 4), split(20, 5))
    assert ngrams(of_texts(data, "bytes", 90, ALL)).all()


def test_runs_of_ids_are_told_apart() -> None:
    bytes_ = torch.arange(256)
    assert len(next(_hashes(bytes_)).unique()) == 256
    pairs = torch.cartesian_prod(bytes_[:64], bytes_[:64]).flatten()
    *_, hashes = zip(range(2), _hashes(pairs), strict=False)
    # Of 4,096 pairs in 262,144 buckets some 32 share one by chance.
    assert len(hashes[1][::2].unique()) > 4_000


def test_a_speed_is_measured_again_at_other_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [Record.of("train_step", 1.0, benchmark="arena", variant="full", setting={"at": "length", "length": 1024})]
    monkeypatch.setattr("greenformers.arena.grid.speed_of", lambda *_: stored)
    grid = Grid(tasks=("text",), variants=("transformer",), lengths=(1024,))
    for lengths, ended in (((1024,), True), ((1024, 4096), False), ((), True)):
        plan = Plan(replace(grid, lengths=lengths), tmp_path, {}, {}, {}, Probes(grid, None))
        assert _Speed("text", BASELINE, plan).ended == ended


# What cannot be done.


@pytest.mark.parametrize("error", [OutOfMemory(2.0**30), ValueError("logits must be numbers, got nan")])
def test_the_reason_is_stored(error: Exception, tmp_path: Path) -> None:
    def work() -> None:
        raise error

    folder = tmp_path / "cell"
    reason = tried(folder, work)
    assert str(error) in str(reason)
    assert json.loads((folder / "failed.json").read_text()) == {"reason": reason}


def test_counts_of_the_small_expressions() -> None:
    assert {name: len(expressions().split(name)) for name in COUNTS} == COUNTS


def test_baselines_of_other_inputs_are_made_again(tmp_path: Path) -> None:
    drawn(tmp_path)
    grid = Grid(tasks=("listops",), variants=("transformer",), seeds=1, size="tiny", controls=False, pretrain=False)
    plan = planned(grid, tmp_path)
    plan.parts[0].work({}, Console(quiet=True))
    assert planned(grid, tmp_path).parts[0].ended
    assert {len(right) for right in baselines_of("listops", tmp_path).values()} == {COUNTS["test"]}
    assert not planned(replace(grid, limit=10), tmp_path).parts[0].ended


def test_what_has_no_room_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> int:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147745800 bytes")

    monkeypatch.setattr("greenformers.arena.probe.flops", full)
    with pytest.raises(ValueError, match="memory"):
        Probes(Grid(tasks=("listops",), variants=("linformer",))).flops("listops", "linformer")


def test_what_was_measured_before_is_of_the_newest_run_too(tmp_path: Path) -> None:
    drawn(tmp_path)
    plan = planned(
        Grid(tasks=("listops",), variants=("transformer",), seeds=1, controls=False, pretrain=False), tmp_path
    )
    plan.parts[0].work({}, Console(quiet=True))
    setting = {"task": "listops", "at": "step", "beside": BASELINE}
    before = {"time": "2026-01-01", "machine": {"cpu": "slow"}}
    old = Record.of("train_step", 1.0, benchmark="arena", variant=BASELINE, context=before, setting=setting)
    place = folder_of(tmp_path, "listops", BASELINE) / SPEED
    place.parent.mkdir(parents=True, exist_ok=True)
    append(place, [old])
    told = newest(records_of(plan, {"time": "2026-02-02"}))
    assert {"test_accuracy", "flops", "train_step"} <= {record.metric for record in told}
    assert [r.context["machine"] for r in told if r.metric == "train_step"] == [{"cpu": "slow"}]


@pytest.mark.parametrize("there", [[], ["grid"], ["grid", "grid/result.json"]])
def test_a_refused_grid_leaves_nothing_in_a_new_folder(tmp_path: Path, there: list[str]) -> None:
    for name in there:
        (tmp_path / name).touch() if "." in name else (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="refused"), locked(tmp_path / "grid"):  # noqa: PT012
        (tmp_path / "grid" / "probes.json").touch()
        raise ValueError("refused")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == ({*there, "grid/.lock", "grid/probes.json"} if len(there) == 2 else set(there))
