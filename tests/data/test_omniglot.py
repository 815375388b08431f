"""Omniglot: small archives written here, damaged ones, and the two small background sets."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from greenformers.data import Split, load
from greenformers.data.omniglot import ARCHIVES, sets, turned

SHARED = Path(__file__).parents[2].parent / "shared/data/omniglot"


def png(ink: np.ndarray) -> bytes:
    """A drawing of ink (105, 105), booleans, as the data set has it: one bit a pixel, ink is black."""
    file = io.BytesIO()
    Image.fromarray(np.where(ink, 0, 255).astype(np.uint8)).convert("1").save(file, "PNG")
    return file.getvalue()


def drawing(alphabet: int, character: int, drawer: int) -> np.ndarray:
    ink = np.zeros((105, 105), bool)
    ink[15 * character : 15 * character + 15, : 30 * (alphabet + 1)] = True
    ink[90:, : 5 * drawer] = True
    return ink


def write(path: Path, alphabets: dict[str, int], drawers: int = 20) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/", "")
        for place, (alphabet, characters) in enumerate(alphabets.items()):
            # Not in their order, as an archive may be.
            for character in reversed(range(characters)):
                for drawer in range(1, drawers + 1):
                    name = f"{path.stem}/{alphabet}/character{character + 1:02d}/0{character:03d}_{drawer:02d}.png"
                    archive.writestr(name, png(drawing(place, character, drawer)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / ARCHIVES[1][0], {"A": 2, "B": 1})
    write(tmp_path / ARCHIVES[1][1], {"C": 2})
    return tmp_path


def test_every_drawing_has_its_place(folder: Path) -> None:
    first, second = sets(folder)
    assert first.labels.tolist() == [0] * 20 + [1] * 20 + [2] * 20
    assert second.labels.tolist() == [0] * 20 + [1] * 20
    for part, places in ((first, [(0, 0), (0, 1), (1, 0)]), (second, [(0, 0), (0, 1)])):
        expected = []
        for alphabet, character in places:
            for drawer in range(1, 21):
                ink = torch.from_numpy(drawing(alphabet, character, drawer)).double()
                # The mean of areas of 3.75 x 3.75 pixels: of 15 x 15, where each pixel is 4 x 4.
                fine = ink.repeat_interleave(4, 0).repeat_interleave(4, 1)
                expected.append(torch.nn.functional.avg_pool2d(fine[None, None], 15).flatten())
        assert part.values[:, :, 0].shape == (len(places) * 20, 784)
        assert_close(part.values[:, :, 0].double(), torch.stack(expected), atol=0.5 / 255 + 1e-6, rtol=0)


def test_the_last_who_drew_are_the_test(folder: Path) -> None:
    data = load("omniglot", folder)
    assert data.valid is not None
    assert (data.classes, data.length) == (5, 784)
    for part, count in ((data.train, 16), (data.valid, 2), (data.test, 2)):
        assert part.labels.bincount().tolist() == [count] * 5
    first, second = sets(folder)
    assert_close(data.test.pixels[:2], first.pixels[18:20], atol=0, rtol=0)
    assert_close(data.valid.pixels[-2:], second.pixels[36:38], atol=0, rtol=0)
    assert load("omniglot", folder, limit=10, pool=4).length == 49


def test_turned_characters_are_new_ones() -> None:
    images = torch.arange(2 * 784).view(2, 784) % 251
    result = turned(Split(images.to(torch.uint8), torch.tensor([0, 1]), 255))
    assert result.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert_close(result.pixels[:2].long(), images, atol=0, rtol=0)
    for quarter in range(4):
        for image in range(2):
            expected = np.rot90(images[image].view(28, 28).numpy(), quarter).copy()
            assert_close(
                result.pixels[2 * quarter + image].view(28, 28).long(), torch.from_numpy(expected), atol=0, rtol=0
            )


def test_the_whole_sets_come_first(folder: Path) -> None:
    write(folder / ARCHIVES[0][0], {"D": 4})
    assert len(sets(folder)[0]) == 60  # the other half is missing
    write(folder / ARCHIVES[0][1], {"E": 1})
    assert [len(part) for part in sets(folder)] == [80, 20]


def test_what_is_missing_or_damaged(folder: Path, tmp_path: Path) -> None:
    name = ARCHIVES[1][1]
    with pytest.raises(ValueError, match=r"^omniglot needs the folder that holds its archives, got none$"):
        load("omniglot")
    with pytest.raises(FileNotFoundError, match=r"is not a folder$"):
        sets(tmp_path / "nowhere")
    for content, message in (
        (b"", "found a damaged file"),
        ((folder / name).read_bytes()[:999], "found a damaged file"),
    ):
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"^{name}: expected drawings of characters, {message}"):
            sets(folder)
    write(folder / name, {"C": 1}, drawers=19)
    with pytest.raises(ValueError, match=rf"^{name}: expected 20 drawings of C/character01, found 19$"):
        sets(folder)
    write(folder / name, {})
    with pytest.raises(ValueError, match=rf"^{name}: expected drawings as set/alphabet/character/0000_01\.png"):
        sets(folder)
    for content, message in ((b"no picture", "cannot identify"), (png(np.zeros((9, 9), bool)), "9x9 pixels")):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("set/C/character01/0001_01.png", content)
        with pytest.raises(ValueError, match=rf"^{name}: expected drawings of characters, .*{message}"):
            sets(folder)
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"neither pair is in folder"):
        sets(folder)


def test_the_small_sets() -> None:
    if not SHARED.is_dir():
        pytest.skip("shared/data/omniglot is not beside the repository on this machine")
    first, second = sets(SHARED)
    assert first.labels.bincount().tolist() == [20] * 136
    assert second.labels.bincount().tolist() == [20] * 156
    # Thin strokes on empty paper.
    assert 0.02 < first.values.mean() < 0.15
