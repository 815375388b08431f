"""What an install without extras says where a library is missing, and that its help needs next to nothing."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command_line import refused

from greenformers._extras import MissingExtraError, missing, needed

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CALL = re.compile(r'\b(?:missing|needed)\(\s*"[^"]+", "(\w+)", "([\w-]+)"((?:, "[\w.]+")*)')


def test_one_line_names_what_needs_it_the_library_and_the_extra() -> None:
    assert str(missing("speech", "speech", "soundfile")) == (
        "speech needs soundfile: install greenformers with its extra 'speech', "
        "such as pip install '.[speech]' in a clone"
    )
    assert "ONNX needs all of onnx, onnxscript:" in str(missing("ONNX", "export", "onnx", "onnxscript"))


def test_a_library_is_imported_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert needed("a path", "hub", "os", "os.path") is __import__("os").path
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r"a split needs scikit-learn: .* its extra 'genome'"):
        needed("a split", "genome", "scikit-learn", "sklearn")


def test_every_extra_that_is_named_brings_what_is_missing() -> None:
    calls = [call for path in (ROOT / "greenformers").rglob("*.py") for call in CALL.findall(path.read_text())]
    assert {extra for extra, *_ in calls} == {"energy", "export", "genome", "hub", "speech", "summaries", "translation"}
    for extra, package, _ in calls:
        assert any(re.match(rf"{package}\b", text) for text in EXTRAS[extra]), (extra, package)


def test_tests_and_lint_have_every_extra() -> None:
    missing_ = {
        name: set(EXTRAS[name]) - set(EXTRAS["dev"]) for name in EXTRAS if name not in ("dev", "docs", "minilm")
    }
    assert missing_ == {name: set() for name in missing_}


def test_every_dependency_is_justified() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## Dependencies")[1]
    core, extras = text.split("| extra |")
    asked = {re.split(r"[<>=]", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert {name for row in re.findall(r"^\| (\w[^|`]*) \|", core, re.M)[1:] for name in row.split(", ")} == asked
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", extras, re.M))
    assert {*rows} == {*EXTRAS}
    for name in {*EXTRAS} - {"dev"}:
        assert rows[name].split(", ") == [re.split(r"[<>=]", requirement)[0] for requirement in EXTRAS[name]], name


def test_no_text_asks_an_index_for_a_package_of_our_name() -> None:
    files = [*(ROOT / "greenformers").rglob("*.py"), ROOT / "CONTRIBUTING.md"]
    assert [path for path in files if re.search(r"pip install ['\"]?greenformers", path.read_text())] == []


def test_the_command_line_ends_with_2_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    line = "train --data sst2 --dataset a/b --objective classification --out"
    said = refused(monkeypatch, capsys, *line.split(), str(tmp_path / "out"))
    assert "a data set of the hub needs datasets: install greenformers with its extra 'hub'" in said


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "numpy", "matplotlib", "scipy", "sklearn", "codecarbon", "pandas")
    lines = [["--help"], ["--version"], ["compress", "--help"], ["genome", "study", "--help"]]
    code = (
        "import sys\n"
        "from greenformers.cli import main\n"
        f"for words in {lines}:\n"
        "    sys.argv = ['greenformers', *words]\n"
        "    try:\n        main()\n    except SystemExit as end:\n        assert not end.code, end.code\n"
        f"    print('heavy:', *[name for name in {heavy} if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert [line for line in shown.splitlines() if line.startswith("heavy:")] == ["heavy:"] * len(lines)
