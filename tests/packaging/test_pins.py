"""What make setup installs is pinned, and fits what the project asks for."""

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_requirement_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = list(project["project"]["dependencies"])
    for extra in project["project"]["optional-dependencies"].values():
        asked += extra
    pinned = {canonical(name) for name in PINS}
    assert {canonical(re.match(r"[\w.-]+", text)[0]) for text in asked} <= pinned


def test_torch_is_pinned_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    # Users may have any torch of the range; this project is built and tested with one.
    assert "torch>=2.8,<3" in project["project"]["dependencies"]
    assert PINS["torch"] == "2.13.0"
    assert "torch==2.13.0" in (ROOT / "Makefile").read_text()


def test_no_pin_is_contradicted_by_what_is_installed() -> None:
    installed = {canonical(item.name): item.version.split("+")[0] for item in distributions()}
    wrong = {
        name: (version, installed[canonical(name)])
        for name, version in PINS.items()
        if canonical(name) in installed and installed[canonical(name)] != version
    }
    assert wrong == {}
