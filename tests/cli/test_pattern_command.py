"""`greenformers pattern`, as a user meets it: the picture, the table, and how it refuses."""

from pathlib import Path

import pytest
from command_line import refused, run
from matplotlib.image import imread


def test_a_picture_and_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pattern.png"
    sizes = ["--length", "12", "--heads", "2", "--layers", "2"]
    words = ["pattern", "sliding_window", *sizes, "--option", "window=2", "--option", "dilation=[1,3]"]
    assert run(monkeypatch, *words, "--out", str(out)) == 0
    shown = capsys.readouterr().out
    # 12 + 2 x 11 + 2 x 10 pairs in the first head, 12 + 2 x 9 + 2 x 6 in the second.
    assert "4.0" in shown
    assert f"{(54 + 42) / 2 / 144:.2%}" in shown
    assert f"picture: {out}" in shown
    assert imread(out).shape[0] > 300
    before = out.read_bytes()
    assert run(monkeypatch, *words, "--out", str(out)) == 0
    assert out.read_bytes() == before


def test_brackets_of_a_path_are_no_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "[lr=1]" / "pattern.png"
    out.parent.mkdir()
    assert run(monkeypatch, "pattern", "cascade", "--length", "4", "--heads", "1", "--out", str(out)) == 0
    assert f"picture: {out}" in capsys.readouterr().out


def panels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str) -> float:
    """Width over height of a picture, which tells how its panels stand."""
    out = tmp_path / "pattern.png"
    assert run(monkeypatch, "pattern", *words, "--length", "12", "--out", str(out)) == 0
    height, width = imread(out).shape[:2]
    return float(width / height)


def test_equal_heads_and_layers_are_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    area = panels(monkeypatch, tmp_path, "cascade", "--heads", "1")
    assert panels(monkeypatch, tmp_path, "cascade", "--heads", "4", "--layers", "1") == area
    assert panels(monkeypatch, tmp_path, "local_blocks", "--heads", "2", "--layers", "3") == area
    # Layers that differ stand side by side; layers and heads that differ in a grid.
    assert panels(monkeypatch, tmp_path, "cascade", "--layers", "4", "--option", "base=1") > 2 * area
    few = ["--heads", "2", "--layers", "2", "--option", "block=2", "--option", "random=1"]
    assert panels(monkeypatch, tmp_path, "bigbird", *few) == pytest.approx(area, rel=0.4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("full --length 9 --out x.png", "pattern must be one of bigbird"),
        ("cascade --length 0 --out x.png", "length must be in 1..16384, got 0"),
        ("cascade --length 9 --out x.pdf", "out must end in .png, got 'x.pdf'"),
        ("cascade --length 9 --out nowhere/x.png", "nowhere is not a folder"),
        ("cascade --length 9 --option base --out x.png", "option must be name=value, got 'base'"),
        ("cascade --length 9 --option bas=2 --out x.png", "option must be of cascade, got bas"),
        ("cascade --length 9 --option base=0 --out x.png", "base must be at least 1, got 0"),
        ("etc --length 9 --causal --out x.png", "etc has no causal form"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(monkeypatch, capsys, "pattern", *words.split())
    assert not list(tmp_path.iterdir())
