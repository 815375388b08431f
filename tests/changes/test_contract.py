"""The contract of a change, held by every row on every network of the zoo."""

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from changes.rows import ROWS, Row
from contract import BY_NAME, applies, apply, changed_model, check_inverse, check_same, check_shown, snapshot
from forked import printed
from fresh import chosen, read_again
from models import sentences, tokenizer
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel
from zoo import ZOO, difference, inputs, network, outputs

import greenformers
from greenformers.changes import build, kind, kinds, names
from greenformers.changes._options import as_dict, as_flags, typed
from greenformers.changes._recipe import parse, read_recipe, recipe_text
from greenformers.checkpoint.description import Description
from greenformers.checkpoint.place import place
from greenformers.checkpoint.structure import structure
from greenformers.cli.compress import compress as command
from greenformers.cli.compress import recipe_of


def test_every_change_has_a_row() -> None:
    assert sorted(BY_NAME) == names()
    for name in names():
        assert kind(name).name() == name
        assert (kind(name).__doc__ or "").splitlines()[0].endswith(".")


@pytest.fixture(scope="module")
def reloaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What one fresh process reads of every row on every network that it can be made of."""

    def models() -> Iterator[tuple[str, str, PreTrainedModel]]:
        for case in chosen(request, "test_alone"):
            row, name = case["row"], case["name"]
            if applies(row, name):
                yield f"{row.name}-{name}", name, changed_model(name, [row.change])

    return read_again(tmp_path_factory.mktemp("changed"), models())


@contextmanager
def refused() -> Iterator[None]:
    """What happens here is refused by this library, in words: an error of torch or transformers is none of ours."""
    with pytest.raises(ValueError, match=r"\w+ .*\w") as caught:
        yield
    assert "greenformers" in Path(caught.traceback[-1].path).parts[-4:-1], caught.traceback[-1]


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_alone(reloaded: dict[str, dict[str, Any]], row: Row, name: str) -> None:
    if not applies(row, name):
        model = network(name)
        before = snapshot(model)
        with refused():
            apply(model, [row.change], name)
        check_same(before, snapshot(model))
        return
    read = reloaded[f"{row.name}-{name}"]
    assert read["after"]["difference"] == 0
    assert read["after"]["keys"] == {}
    described = structure(read["model"])
    check_shown(list(described.changes), row.described, [row.name])
    if row.described:
        check_inverse(described, read["model"])


@pytest.mark.parametrize(
    ("row", "name"),
    [
        pytest.param(row, name, id=f"{row.name}-{name}")
        for row in ROWS
        for name in ("bert", "gpt2")
        if applies(row, name)
    ],
)
def test_copies_types_and_state_dicts(row: Row, name: str) -> None:
    model, batch = changed_model(name, [row.change]), inputs(name)
    expected = outputs(model, batch)
    copied = copy.deepcopy(model)
    assert structure(copied).as_dict() == structure(model).as_dict()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.zero_()
    assert difference(outputs(copied, batch), expected) == 0
    assert difference(outputs(model, batch), expected) > 0
    model.load_state_dict(copied.state_dict())
    assert difference(outputs(model, batch), expected) == 0
    other = copied.to(torch.bfloat16 if model.dtype == torch.float32 else torch.float32)
    assert structure(other).as_dict() == structure(model).as_dict()
    scale = max(part.abs().max().item() for part in expected)
    assert 0 < difference(outputs(other, batch), expected) < 0.2 * scale


@pytest.mark.parametrize(("name", "description"), [(row.name, hostile) for row in ROWS for hostile in row.hostile])
def test_hostile_descriptions_are_refused(name: str, description: Any) -> None:
    with refused():
        place(network("bert"), Description({name: description}))


@pytest.mark.parametrize("described", [{"changes": {"os": {}}}, {"changes": []}, {"changes": {"int8": {}}, "order": []},
                                       {"changes": {"int8": {}}, "order": 3}, {"changes": {"_int8": {}}}])  # fmt: skip
def test_descriptions_of_no_change_are_refused(described: dict[str, Any]) -> None:
    with refused():
        Description.read(described)


# Plain networks: torch's own encoder, convolutions, recurrent layers beside linear ones.
class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(32, 24, 3, padding=1), nn.Conv2d(1, 16, 5, padding=2)
        self.head = nn.Linear(24, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x.mT).relu() + self.second(x[:, None]).mean((1, 3))[:, None]
        return self.head(y.mean(-1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Linear(32, 24), nn.LSTM(24, 16, batch_first=True)
        self.head, self.tied = nn.Linear(16, 40), nn.Linear(16, 40, bias=False)
        self.tied.weight = self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lstm(self.embedding(x))[0]
        return self.head(y) + self.tied(y)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 2, 48, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


PLAIN = {"Convolutions": Convolutions, "Recurrent": Recurrent, "encoder": encoder}
RECIPES = [["low_rank"], ["int8"], ["low_rank", "int8"]]
READ = """
import sys, torch, greenformers
from pathlib import Path
from safetensors.torch import load_file
sys.path.insert(0, sys.argv[2])
torch.set_num_threads(1)
from test_contract import PLAIN
from greenformers.checkpoint.structure import structure
for folder in sorted(Path(sys.argv[1]).iterdir()):
    torch.manual_seed(7)
    model = greenformers.load(folder, into=PLAIN[folder.name.partition("-")[0]]())
    # Copies: where a file puts numbers in memory decides how some products round.
    given = {name: x.clone() for name, x in load_file(folder / "expected.safetensors").items()}
    with torch.no_grad():
        assert torch.equal(model(given["x"]), given["y"]), folder.name
    assert structure(model).order == folder.name.split("-")[1:], folder.name
print("all read")
"""


def plain(which: str, changes: Sequence[str]) -> nn.Module:
    torch.manual_seed(0)
    model = PLAIN[which]().eval()
    options: dict[str, dict[str, Any]] = {"low_rank": {"keep": None, "rank": 8, "select": None}}
    greenformers.compress(model, [BY_NAME[name].change.but(**options.get(name, {})) for name in changes])
    return model


def test_plain_networks_are_read_in_a_fresh_process(tmp_path: Path) -> None:
    """Of a network that is not of transformers nothing was saved but ranks: int8 was lost without a word."""
    x = torch.randn(3, 8, 32)
    for which in PLAIN:
        for recipe in RECIPES:
            model = plain(which, recipe)
            folder = greenformers.save(model, tmp_path / "-".join([which, *recipe]))
            with torch.no_grad():
                save_file({"x": x, "y": model(x).contiguous()}, folder / "expected.safetensors")
    here = str(Path(__file__).parent)
    assert printed(READ, tmp_path, here).endswith("all read\n")


@pytest.mark.parametrize("row", [row for row in ROWS if not row.plain], ids=lambda row: row.name)
def test_what_needs_a_model_of_transformers_says_so(row: Row) -> None:
    torch.manual_seed(0)
    model = Recurrent()
    before = snapshot(model)
    with pytest.raises(ValueError, match="Recurrent is not a model of transformers"):
        greenformers.compress(model, [row.change], texts=sentences(9), tokenizer=tokenizer("bert"))
    check_same(before, snapshot(model))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_python_flags_and_files_say_the_same(row: Row, tmp_path: Path) -> None:
    change = row.change
    assert parse(typed(change)) == change
    (tmp_path / "recipe.toml").write_text(recipe_text([change]))
    assert read_recipe(tmp_path / "recipe.toml") == [change]
    options = as_dict(change)
    assert build(options.pop("name"), **json.loads(json.dumps(options))) == change
    assert as_flags([change]) == list(row.flags)
    assert recipe_of(None, None, given(row.flags)) == [change]


def given(words: Sequence[str]) -> dict[str, Any]:
    """What the command is called with for some words."""
    import typer
    from typer.testing import CliRunner

    seen: dict[str, Any] = {}

    def watched(**values: Any) -> None:
        seen.update(values)

    watched.__signature__ = command.__signature__  # type: ignore[attr-defined]
    app = typer.Typer()
    app.command()(watched)
    done = CliRunner().invoke(app, ["model", "--out", "out", *words])
    assert done.exit_code == 0, done.output
    return seen


def test_defaults_work() -> None:
    for change in kinds():
        assert as_dict(change()) == {"name": change.name()}
        assert parse(change.name()) == change()
