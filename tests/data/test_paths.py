"""Pathfinder and Path-X: what the pictures show against the label, what must not tell it, and their files."""

import math

import numpy as np
import pytest
import torch

from greenformers.data import _paths, load, path_x, pathfinder


@pytest.fixture(scope="module")
def pictures():
    return pathfinder.generate(dashes=6, train=257, valid=31, test=61, seed=3)


def drawn(side, dashes, count, seed=0):
    """The paths themselves of some pictures, and the source that drew them."""
    source, geometry = np.random.default_rng(seed), _paths.GEOMETRIES[side]
    return _paths._batch(source, geometry, geometry.margins[0], dashes, count), source


def distance(p, q):
    """Least distance of two segments, by points along both."""
    share = np.linspace(0, 1, 33)[:, None]
    a, b = (segment[0] + share * (segment[1] - segment[0]) for segment in (p, q))
    return np.hypot(*np.moveaxis(a[:, None] - b[None], -1, 0)).min()


def test_labels_are_balanced_and_pictures_stretched(pictures):
    assert (pictures.name, pictures.classes, pictures.length) == ("pathfinder", 2, 1024)
    sizes = [(len(part), int(part.labels.sum())) for part in (pictures.train, pictures.valid, pictures.test)]
    assert sizes == [(257, 128), (31, 15), (61, 30)]
    for part in (pictures.train, pictures.valid, pictures.test):
        assert part.pixels.dtype == torch.uint8
        assert (part.pixels.amin(1) == 0).all()
        assert (part.pixels.amax(1) == 255).all()
    every = torch.cat([pictures.train.pixels, pictures.valid.pixels, pictures.test.pixels])
    assert len(every.unique(dim=0)) == len(every)


def test_the_seed_alone_decides():
    first, again, other = (pathfinder.generate(dashes=6, train=7, valid=1, test=3, seed=seed) for seed in (5, 5, 6))
    torch.testing.assert_close(first.train.pixels, again.train.pixels, atol=0, rtol=0)
    torch.testing.assert_close(first.train.labels, again.train.labels, atol=0, rtol=0)
    assert not torch.equal(first.train.pixels, other.train.pixels)


@pytest.mark.parametrize(("side", "dashes"), [(32, 9), (64, 6), (128, 6)])
def test_paths_are_what_the_paper_says(side, dashes):
    paths, _ = drawn(side, dashes, 5)
    geometry = paths.geometry
    margin, gap = geometry.margins[0], 2 * geometry.margins[0]
    assert len(paths) > 0
    for picture, discs in zip(paths.dashes, paths.discs, strict=True):
        long = picture[: 2 * dashes].reshape(dashes, 2, 2, 2).swapaxes(0, 1)
        short = picture[2 * dashes :].reshape(-1, dashes // 3, 2, 2)
        short = short[np.isfinite(short[:, 0, 0, 0])]
        assert len(short) <= geometry.distracting // (dashes // 3)
        for path in [*long, *short]:
            along = path[:, 1] - path[:, 0]
            np.testing.assert_allclose(np.hypot(*along.T), geometry.length)
            # Two dashes meet at a point half a gap ahead of the one and behind the other, at a turn of bounded size.
            unit = along / geometry.length
            np.testing.assert_allclose((path[:-1, 1] + margin * unit[:-1]), path[1:, 0] - margin * unit[1:])
            turns = np.arccos(np.clip((unit[:-1] * unit[1:]).sum(-1), -1, 1))
            assert turns.max() < math.pi / 2 / geometry.straight + 1e-6
        # No dash comes nearer to another than the gap, but for its neighbours; the mask has cells of some size.
        listed = [
            (number, place, dash) for number, path in enumerate([*long, *short]) for place, dash in enumerate(path)
        ]
        for i, (path, place, dash) in enumerate(listed):
            assert ((dash > _paths.FRAME - 1e-9) & (dash < side - _paths.FRAME + 1e-9)).all()
            for other, at, against in listed[:i]:
                if path != other or abs(place - at) > 1:
                    assert distance(dash, against) > gap + geometry.thickness - 1 / geometry.cells
        # The first two discs are on the ends of one path, the third is on the other path; both as far away.
        ends = [{tuple(path[0, 0]), tuple(path[-1, 1])} for path in long]
        first, own, other = map(tuple, discs)
        assert any({first, own} == pair for pair in ends)
        assert not any({first, other} <= pair for pair in ends)
        assert abs(math.dist(first, own) - math.dist(first, other)) <= side / 20


def test_the_label_moves_one_disc_only():
    paths, _ = drawn(32, 6, 11)
    ones, zeros = (paths.render(np.full(len(paths), label)) for label in (1, 0))
    for picture, other, discs in zip(ones, zeros, paths.discs, strict=True):
        rows, columns = np.nonzero(picture != other)
        middles = np.stack([rows, columns], -1) + 0.5
        near = np.hypot(*np.moveaxis(middles[:, None] - discs[1:], -1, 0)).min(1)
        assert len(rows) > 0
        assert near.max() < paths.geometry.radius + 1.3
        first = np.floor(discs[0]).astype(int)
        assert picture[tuple(first)] == other[tuple(first)] == 255


def test_pictures_are_drawn_as_by_their_definition():
    """Every pixel from its distance to every dash and disc, one after the other."""
    paths, _ = drawn(32, 6, 2)
    geometry = paths.geometry
    labels = np.arange(len(paths)) % 2
    assert len(paths) > 0
    for picture, dashes, discs, label in zip(paths.render(labels), paths.dashes, paths.discs, labels, strict=True):
        marks = discs[:2] if label else discs[[0, 2]]
        for row in range(0, 32, 3):
            for column in range(32):
                middle = np.array([row, column]) + 0.5
                value = 0.0
                for begin, end in dashes[np.isfinite(dashes[:, 0, 0])]:
                    along = end - begin
                    share = min(max(float((middle - begin) @ along / (along @ along)), 0), 1)
                    from_line = math.dist(middle, begin + share * along)
                    covered = (geometry.thickness / 2 + 0.5 - from_line) / min(1, geometry.thickness)
                    value = max(value, 0.9 * min(max(covered, 0), 1))
                value = max([value, *(min(geometry.radius + 0.5 - math.dist(middle, disc), 1) for disc in marks)])
                assert abs(picture[row, column] - 255 * value) <= 0.51


def test_nothing_plain_tells_the_label():
    """Brightness, number of dashes and distance between the discs are alike for both labels, within chance."""
    paths, source = drawn(32, 6, 400, seed=1)
    labels = source.integers(2, size=len(paths))
    assert len(paths) > 60
    second = np.where(labels[:, None] == 1, paths.discs[:, 1], paths.discs[:, 2])
    apart = np.hypot(*(second - paths.discs[:, 0]).T)
    bright = paths.render(labels).mean((1, 2))
    number = np.isfinite(paths.dashes[:, :, 0, 0]).sum(1)
    for measure in (apart, bright, number):
        (positive, negative), spread = (measure[labels == label] for label in (1, 0)), measure.std() + 1e-9
        assert abs(positive.mean() - negative.mean()) < 4 * spread * (1 / len(positive) + 1 / len(negative)) ** 0.5


def test_files_are_read_as_they_were_written(tmp_path, pictures):
    pathfinder.write(tmp_path / "new", pictures)
    read = load("pathfinder", tmp_path / "new")
    for part in ("train", "valid", "test"):
        torch.testing.assert_close(getattr(read, part).pixels, getattr(pictures, part).pixels, atol=0, rtol=0)
        torch.testing.assert_close(getattr(read, part).labels, getattr(pictures, part).labels, atol=0, rtol=0)
    few = load("pathfinder", tmp_path / "new", limit=40, pool=2)
    assert [len(part) for part in (few.train, few.valid, few.test)] == [40, 31, 40]
    assert few.valid.values.shape == (31, 256, 1)
    with pytest.raises(ValueError, match=r"^train_images\.npy: expected pictures of 128x128, found 32x32$"):
        load("path_x", tmp_path / "new")


def test_path_x(tmp_path):
    data = path_x.generate(dashes=6, train=3, valid=1, test=2)
    path_x.write(tmp_path, data)
    read = load("path_x", tmp_path)
    assert (read.name, read.length, len(read.train)) == ("path_x", 16_384, 3)
    torch.testing.assert_close(read.test.pixels, data.test.pixels, atol=0, rtol=0)
    assert load("pathfinder", tmp_path).length == 16_384


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train_images", np.zeros((2, 32, 32)), "train_images.npy: expected uint8 in 3 dimensions, found float64 in 3"),
        ("test_images", np.zeros((2, 32, 31), np.uint8), "expected pictures of 32x32 or 64x64 or 128x128, found 32x31"),
        ("test_images", np.zeros((2, 64, 64), np.uint8), "test_images.npy: expected pictures of 1024 pixels as in"),
        ("valid_labels", np.zeros(3, np.uint8), "valid_labels.npy: expected a label a picture, 2, found 3"),
        ("valid_labels", np.full(2, 2, np.uint8), "valid_labels.npy: labels must be in 0..1, found 2"),
        ("valid_labels", None, "valid_labels.npy: expected an array as numpy saves it, found another file"),
    ],
)
def test_damaged_files(tmp_path, name, array, message):
    for part in ("train", "valid", "test"):
        np.save(tmp_path / f"{part}_images.npy", np.zeros((2, 32, 32), np.uint8))
        np.save(tmp_path / f"{part}_labels.npy", np.arange(2, dtype=np.uint8))
    assert len(load("pathfinder", tmp_path).valid) == 2
    if array is None:
        (tmp_path / f"{name}.npy").write_bytes(b"no array")
    else:
        np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load("pathfinder", tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 33}, "side must be one of 32, 64, 128, got 33"),
        ({"dashes": 5}, "dashes must be in 6..16, got 5"),
        ({"dashes": 17}, "dashes must be in 6..16, got 17"),
        ({"valid": 0}, "valid must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_sizes_out_of_range(options, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        pathfinder.generate(**options)
    assert str(caught.value) == message


def test_no_folder(tmp_path):
    with pytest.raises(ValueError, match=r"^path_x needs the folder of the pictures .* got none$"):
        load("path_x")
    with pytest.raises(FileNotFoundError, match=r"^pathfinder needs the folder .* is not a folder$"):
        load("pathfinder", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"train_images\.npy"):
        load("pathfinder", tmp_path)


@pytest.mark.parametrize("empty", [True, False])
def test_files_that_are_no_arrays(empty, tmp_path):
    pathfinder.write(tmp_path, pathfinder.generate(train=2, valid=2, test=2, dashes=6))
    file = tmp_path / "valid_labels.npy"
    if empty:
        file.write_bytes(b"")
    else:
        with file.open("wb") as target:
            np.savez(target, a=np.zeros(2))
    with pytest.raises(ValueError, match=r"valid_labels\.npy: expected an array as numpy saves it"):
        load("pathfinder", tmp_path)
