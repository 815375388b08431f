"""Routing by parts and in two steps: the same positions, outputs, losses and gradients as all at once."""

import pytest
import torch

from greenformers.attention import Shape, build
from greenformers.attention import _cluster_choice as choice
from greenformers.attention import _parts as parts

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("products", [1, 700, 2**20])
@pytest.mark.parametrize(("N", "clusters", "window"), [(5, 3, 5), (64, 7, 4), (131, 4, 5), (333, 6, 3), (512, 2, 8)])
def test_positions_are_those_of_the_largest_products(
    monkeypatch: Patch, products: int, N: int, clusters: int, window: int
) -> None:
    monkeypatch.setattr(choice, "PRODUCTS", products)
    monkeypatch.setattr(choice, "MANY", 1)
    torch.manual_seed(N)
    x, centroids = torch.randn(2, 3, N, 4), torch.randn(3, clusters, 4)
    mask = torch.rand(2, N) < 0.9
    near = centroids @ x.mT
    for keep in (None, mask):
        seen = near if keep is None else near.masked_fill(~keep[:, None, None], -torch.inf)
        places, own = choice.choose_positions(x, centroids, keep, window, in_order=True, nearest=True)
        torch.testing.assert_close(seen.gather(3, places), seen.topk(window).values)
        assert len({*places[0, 0, 0].tolist()}) == window
        some, _ = choice.choose_positions(x, centroids, keep, window)
        assert torch.equal(some.sort(-1).values, places.sort(-1).values)
        assert own is not None
        assert torch.equal(own, near.max(2).indices)
    assert torch.equal(choice.nearest_centroids(x, centroids), near.max(2).indices)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_of_equal_products_the_first_centroid_counts(monkeypatch: Patch, kind: torch.dtype) -> None:
    monkeypatch.setattr(choice, "MANY", 1)
    x = torch.cat([torch.zeros(1, 1, 5, 4), torch.ones(1, 1, 6, 4)], 2).to(kind)
    centroids = torch.tensor([[[-1.0] * 4, [1.0] * 4, [1.0] * 4]])
    assert choice.nearest_centroids(x, centroids)[0, 0].tolist() == [0] * 5 + [1] * 6
    x[0, 0, 3] = torch.nan
    assert set(choice.nearest_centroids(x, centroids)[0, 0].tolist()) <= {0, 1, 2}


@pytest.mark.parametrize("numbers", [1, 300, 2000])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("every_query", [False, True])
def test_parts_change_nothing(monkeypatch: Patch, numbers: int, masked: bool, every_query: bool) -> None:
    def computed() -> list[torch.Tensor]:
        torch.manual_seed(0)
        module = build("routing", Shape(3, 4, 40), clusters=4, every_query=every_query, commitment=0.5).double()
        q, k, v = (torch.randn(5, 3, 40, 4, dtype=torch.double, requires_grad=True) for _ in range(3))
        mask = torch.arange(40) < torch.tensor([40, 33, 7, 1, 0])[:, None] if masked else None
        out, loss = module.forward_with_loss(q, k, v, mask)
        (out.square().sum() + loss).backward()
        module.update_()
        chosen = module.choose(q, k, v, mask)
        again = module.eval()(q, k, v, mask, choice=chosen)
        return [out, loss, module.centroids, again, *(x.grad for x in (q, k, v))]

    whole = computed()
    monkeypatch.setattr(parts, "NUMBERS", numbers)
    for ours, theirs in zip(computed(), whole, strict=True):
        torch.testing.assert_close(ours, theirs)
