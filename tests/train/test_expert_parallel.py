"""Two processes with half of the experts each are one with all: outputs, losses and gradients."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked import SERVER
from torch import nn

from greenformers import depth
from greenformers.feed_forward import Size, build
from greenformers.train.expert_parallel import average_gradients, gather, spread

B, N, D, F, E = 4, 11, 6, 10, 4
CASES = {
    "dropless": {"capacity": None},
    "top 2, low rank": {"capacity": None, "k": 2, "ranks": {"up": 3}},
    "capacity": {"capacity": 0.7, "least": 1, "k": 2, "gated": True},
    "one expert gets all": {"capacity": None, "crowded": True},
    "one process has nothing but padding": {"lengths": (11, 7, 0, 0)},
}


def block(ranks=None, crowded=False, **options):
    torch.manual_seed(0)
    options.pop("lengths", None)
    module = build("switch", Size(D, F, nn.GELU, ranks=ranks or {}), experts=E, jitter=0.0, **options).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
        if crowded:
            module.router.zero_()
            module.router[3] = 1.0
    return module.train()


def batch(crowded=False, lengths=(11, 6, 9, 1), **_):
    draw = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(B, N, D, dtype=torch.float64, generator=draw) for _ in range(2))
    return x.abs() if crowded else x, weight, torch.arange(N) < torch.tensor(lengths)[:, None]


def learn(module, x, weight, mask, share):
    x.requires_grad_()
    y, loss = module.forward_with_loss(x, mask)
    ((y * weight).sum() * share + loss).backward()
    return {"y": y.detach(), "loss": loss.detach()}, x


def member(rank: int, store: str, out: str) -> None:
    """One of two processes; what it has of each case goes to a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    results = {}
    for name, options in CASES.items():
        module = block(**options)
        before = {key: x.clone() for key, x in module.state_dict().items()}
        assert spread(module) == [""]
        with pytest.raises(ValueError, match="the experts of the network are spread already"):
            spread(module)
        parts = [part.chunk(2)[rank].clone() for part in batch(**options)]
        result, x = learn(module, *parts, share=1.0)
        average_gradients(module)
        grads = {key: p.grad for key, p in module.named_parameters()}
        results[name] = result | {"x": x.grad / 2, "grads": grads}
        with torch.no_grad():
            results[name]["inference"] = module.eval()(parts[0], parts[2])
        gather(module)
        assert all(torch.equal(x, before[key]) for key, x in module.state_dict().items())
    torch.save(results, f"{out}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    home = tmp_path_factory.mktemp("experts")
    members = [SERVER.Process(target=member, args=(rank, str(home / "store"), str(home))) for rank in range(2)]
    for each in members:
        each.start()
    for each in members:
        each.join(100)
        each.kill()
        assert each.exitcode == 0
    return [torch.load(Path(home) / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_two_are_one(parts, name):
    module, (x, weight, mask) = block(**CASES[name]), batch(**CASES[name])
    expected, x = learn(module, x, weight, mask, share=0.5)  # the mean of two losses
    both = [part[name] for part in parts]
    torch.testing.assert_close(torch.cat([part["y"] for part in both]), expected["y"])
    torch.testing.assert_close(torch.cat([part["inference"] for part in both]), module.eval()(x.detach(), mask))
    torch.testing.assert_close(torch.cat([part["x"] for part in both]), x.grad)
    for part in both:
        torch.testing.assert_close(part["loss"], expected["loss"])
    for key, parameter in module.named_parameters():
        grads = [part["grads"][key] for part in both]
        if key == "router":
            torch.testing.assert_close(grads[0], grads[1])
            torch.testing.assert_close(grads[0], parameter.grad)
        else:
            assert len(grads[0]) == E // 2
            torch.testing.assert_close(torch.cat(grads), parameter.grad)


def test_what_cannot_be_spread(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 3)
    monkeypatch.setattr(dist, "get_rank", lambda *_: 0)
    with pytest.raises(ValueError, match="processes must divide the 4 experts, got 3"):
        spread(block(), group="three")
    with pytest.raises(ValueError, match="Linear has no mixture of experts to spread"):
        spread(nn.Linear(2, 2), group="three")
    halting = depth.build("universal", depth.Size(width=8, steps=3))
    with pytest.raises(ValueError, match="experts cannot be spread: processes would call"):
        spread(nn.Sequential(block(), halting), group="three")
