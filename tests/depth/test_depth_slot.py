"""The depth slot: the folder is the registry, and a file put into it is all that another kind takes."""

import ast
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import greenformers.depth
from greenformers.depth import Depth, Running, Size, build, names
from greenformers.model import GreenformerConfig, GreenformerForCausalLM, GreenformerModel

FOLDER = Path(greenformers.depth.__file__).parent
D, N = 10, 13
TOY = '''
import torch
from torch import nn
from greenformers.depth import Depth
from greenformers.depth._contract import Gone


class Backwards(Depth):
    """The layers in reverse order, the first half of the positions through the last one alone; its loss is a weight."""

    def __init__(self, size, *, cost=0.5):
        super().__init__(size)
        self.cost, self.own = cost, nn.Parameter(torch.empty(1))

    def reset_parameters(self):
        nn.init.constant_(self.own, 3.0)

    def forward(self, x, step, *, mask=None, positions=None, keeps=False):
        for n in reversed(range(self.size.steps)):
            x = step(n, x, None)
        steps = torch.full(x.shape[:2], self.size.steps)
        return Gone(x, steps, self.cost * self.own.sum() if self.training else None)
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "backwards.py").write_text(TOY)
    monkeypatch.setattr(greenformers.depth, "__path__", [*greenformers.depth.__path__, str(tmp_path)])
    yield "backwards"
    sys.modules.pop("greenformers.depth.backwards", None)


def config(**given) -> GreenformerConfig:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 17, "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 19, "num_hidden_layers": 3,
        "max_position_embeddings": 23, "initializer_range": 0.3, "pad_token_id": 0,
    }  # fmt: skip
    return GreenformerConfig(**sizes | given)


def tokens(length=N):
    return torch.randint(1, 17, (2, length), generator=torch.Generator().manual_seed(1))


def test_a_file_is_all_that_a_kind_takes(toy, tmp_path):
    assert toy in names()
    model = GreenformerModel(config(depth=toy, depth_options={"cost": 0.25})).eval()
    x = model.embedding(tokens())
    for layer in reversed(model.layers):
        x = layer(x)
    out = model(tokens())
    torch.testing.assert_close(out.last_hidden_state, x)
    assert out.steps.tolist() == [[3] * N] * 2
    assert out.auxiliary_loss is None
    assert model.train()(tokens()).auxiliary_loss.item() == 0.75
    model.save_pretrained(tmp_path / "saved")
    again = GreenformerModel.from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(again(tokens()).last_hidden_state, model.eval()(tokens()).last_hidden_state)
    causal = GreenformerForCausalLM(config(depth=toy)).eval()
    texts = [causal.generate(tokens(5), max_new_tokens=4, do_sample=False, use_cache=use) for use in (True, False)]
    assert torch.equal(*texts)


def test_the_names_are_those_of_the_files():
    assert names() == sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    for path in FOLDER.glob("[!_]*.py"):
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        siblings = {str(node.module).removeprefix("greenformers.depth.") for node in imports} & set(names())
        assert not siblings, f"{path.name} imports {siblings}"


@pytest.mark.parametrize("name", names())
def test_the_contract(name):
    """Masked positions change nothing, and every input and parameter that counts has a gradient."""
    torch.manual_seed(0)
    depth, layer = build(name, Size(D, 4)).double().train(), nn.Linear(D, D).double()
    x = torch.randn(2, N, D, dtype=torch.float64, requires_grad=True)
    mask = (torch.arange(N) < 7).expand(2, -1)

    def step(_, u, running):
        return layer(u if running is None else running.take(u)).tanh()

    gone = depth(x, step, mask=mask)
    assert gone.x.shape == x.shape
    assert gone.steps.shape == mask.shape
    assert not gone.steps[~mask].any()
    assert gone.steps[mask].ge(1).all()
    changed = depth(torch.where(mask[..., None], x, torch.nan), step, mask=mask)
    torch.testing.assert_close(changed.x[mask], gone.x[mask])
    losses = [0.0 if output.loss is None else output.loss for output in (changed, gone)]
    torch.testing.assert_close(*losses)
    (gone.x[mask].square().sum() + losses[1]).backward()
    assert x.grad[mask].any(-1).all()
    assert not x.grad[~mask].any()


def test_positions_that_run_are_taken_and_put_back():
    active = torch.tensor([[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]).bool()
    running, x = Running.of(active), torch.randn(3, 5, 2)
    assert running.rows.tolist() == [0, 2]
    assert running.columns.tolist() == [[1, 3, 4], [0, 0, 0]]
    assert running.mask.tolist() == [[True] * 3, [True, False, False]]
    assert torch.equal(running.take(x)[running.mask], x[active])
    assert torch.equal(running.put(x, running.take(x) + 1), x + active[..., None])
    assert torch.equal(running.places(5), active.flatten().nonzero()[:, 0])
    none = Running.of(active & False)
    assert none.is_empty
    assert none.take(x).shape == (0, 0, 2)
    assert torch.equal(none.put(x, none.take(x)), x)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: build("universe", Size(D, 2)), ValueError, "depth must be one of .*universal; got 'universe'"),
        (lambda: build("_contract", Size(D, 2)), ValueError, "got '_contract'"),
        (lambda: build("universal", Size(D, 2), halt=True), TypeError, "universal has no option 'halt', it has halts"),
        (lambda: Size(0, 2), ValueError, "width must be at least 1, got 0"),
        (lambda: Size(D, 0), ValueError, "steps must be at least 1, got 0"),
        (lambda: config(depth_options={"tau": 1.0}), ValueError, "depth stacked takes no options, got tau"),
        (lambda: config(depth="deep"), ValueError, "depth must be one of stacked, shared, .*; got 'deep'"),
        (lambda: config(depth_option={}), TypeError, "no option 'depth_option'; did you mean 'depth_options'"),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_base_does_nothing():
    with pytest.raises(NotImplementedError):
        Depth(Size(D, 2))(torch.zeros(1, 1, D), lambda _n, u, _: u)
