"""Workers of benchmarks/deploy.py give the mean over tokens and are timed in turns; its tables show the records."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from greenformers.measure.record import Record, with_ratios

FOLDER = Path(__file__).parents[2] / "benchmarks"
# A network whose states of a token are its id and 1, so that embeddings are mean ids.
PEER = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
import serve

def make(network, texts, folder, *options):
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "texts").write_text(" ".join([*texts, *options]))

def load(folder, threads, *options):
    if "broken" in options:
        sys.exit("no such network")
    print("what a library prints")
    return lambda inputs: np.stack([inputs["input_ids"], inputs["attention_mask"]], -1).astype(np.float32) * threads

serve.main(make, load)
"""


@pytest.fixture(scope="module", autouse=True)
def scripts() -> Iterator[None]:
    """The modules of the benchmark can be imported, and are forgotten afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))
    for name in set(sys.modules) - before:
        if name.startswith("_deploy"):
            del sys.modules[name]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """The command line that serves the toy."""
    (tmp_path / "peer.py").write_text(PEER.format(folder=str(FOLDER / "deploy_peers")))
    tokenizer = Tokenizer(WordLevel({"[PAD]": 0, "two": 2, "three": 3, "five": 5, "seven": 7}, "[PAD]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return [sys.executable, str(tmp_path / "peer.py"), "serve", str(tmp_path), str(tmp_path / "tokenizer.json"), "2"]


def file(path: Path, texts: list[str]) -> str:
    path.write_text(json.dumps(texts))
    return str(path)


def test_embeddings_are_means_over_what_is_no_padding_in_the_order_of_the_texts(
    command: list[str], tmp_path: Path
) -> None:
    from _deploy_workers import Worker

    texts = file(tmp_path / "texts.json", ["two three five seven", "seven", "three five"] * 13)
    with Worker(command, 2, tmp_path / "log") as worker:
        worker.ask("embed", texts=texts, length=3, to=str(tmp_path / "rows.npy"))
        assert worker.ask("peak") > 1
    rows = np.load(tmp_path / "rows.npy")
    np.testing.assert_allclose(rows, np.array([[20 / 3, 2], [14, 2], [8, 2]] * 13), rtol=1e-6)
    assert (tmp_path / "log").read_text() == "what a library prints\n"


@pytest.mark.parametrize("way", ["in_turns", "alone"])
def test_every_worker_is_timed_once_a_round(
    way: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import _deploy_workers
    from _deploy_workers import Worker

    monkeypatch.setattr(_deploy_workers, "GAP", 0.0)  # no thread of theirs spins
    texts = file(tmp_path / "texts.json", ["two three"] * 5)
    with Worker(command, 2, tmp_path / "a") as a, Worker(command, 2, tmp_path / "b") as b:
        workers, time = {"a": a, "b": b}, getattr(_deploy_workers, way)
        times, peaks = time(workers, 2, texts=texts, length=2, seconds=0.001)
    assert {name: len(samples) for name, samples in times.items()} == {"a": 2, "b": 2}
    assert all(0 < sample < 1e4 for samples in times.values() for sample in samples)
    assert all(peaks[name] > 1 for name in workers)


def test_a_worker_that_ends_says_why(command: list[str], tmp_path: Path) -> None:
    from _deploy_workers import Worker

    with (
        Worker([*command, "broken"], 2, tmp_path / "log") as worker,
        pytest.raises(RuntimeError, match="no such network"),
    ):
        worker.ask("peak")


def test_an_environment_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import _deploy_environments as environments

    asked: list[tuple[Any, ...]] = []

    def done(*words: Any) -> bool:
        asked.append(words)
        return False

    monkeypatch.setattr(environments, "_done", done)
    assert environments.OWN.environment(tmp_path) == Path(sys.executable)
    assert environments.TORCHAO.environment(tmp_path) is None
    assert [words[1:3] for words in asked] == [("-m", "venv")]


def test_every_pin_is_exact_and_every_form_has_a_server() -> None:
    from _deploy_environments import PEERS
    from _deploy_forms import DENSE, FORMS

    assert all(pin.count("==") == 1 for peer in PEERS for pin in peer.pins)
    assert all(peer.path.is_file() for peer in PEERS)
    assert FORMS[0].variant == DENSE
    assert len({form.variant for form in FORMS}) == len(FORMS)


def test_tables_show_factors_and_intervals_of_each_network() -> None:
    from _deploy_tables import markdown

    def record(metric: str, value: float, variant: str, interval: Any = None, **setting: Any) -> Record:
        return Record.of(metric, value, benchmark="deploy", variant=variant, setting=setting, interval=interval)

    records = [
        record("size", 90, "torch", model="A"),
        record("size", 22.5, "int8", model="A"),
        record("latency", 100, "torch", model="A", batch=8, length=128),
        record("latency", 50, "int8", model="A", batch=8, length=128),
        record("spearman", 86.32, "torch", model="A"),
        record("spearman", 86.1, "int8", [-0.5, 0.25], model="A"),
        record("latency", 2000, "torch", model="B", batch=1, length=18),
        record("size", 400, "torch", model="B"),
    ]
    assert markdown(with_ratios(records, to="torch")) == (
        "A:\n\n| ms at batch x tokens | 8x128 |\n| --- | ---: |\n| torch | 100 |\n| int8 | 50 (2.00x) |\n\n"
        "|  | Size on disk, MiB | Spearman's correlation, % |\n| --- | ---: | ---: |\n"
        "| torch | 90.0 | 86.32 |\n| int8 | 22.5 | 86.10 (-0.50 to +0.25) |\n\n"
        "B:\n\n| ms at batch x tokens | 1x18 |\n| --- | ---: |\n| torch | 2000 |\n\n"
        "|  | Size on disk, MiB |\n| --- | ---: |\n| torch | 400 |\n"
    )
