"""CIFAR-10 in grey: both kinds of files, the split, and what is wrong with damaged ones."""

from pathlib import Path

import numpy as np
import pytest
import torch

from greenformers.data import load

SHARED = Path(__file__).parents[2].parent / "shared/data/cifar10_gray"
SOURCE = np.random.default_rng(3)


@pytest.fixture
def archive(tmp_path):
    """The arrays of a sound file, 60 and 20 images."""
    arrays = {}
    for part, size in (("train", 60), ("test", 20)):
        arrays[f"x_{part}"] = SOURCE.integers(256, size=(size, 32, 32)).astype(np.uint8)
        arrays[f"y_{part}"] = (np.arange(size) % 3).astype(np.uint8)
    np.savez(tmp_path / "cifar10_gray.npz", **arrays)
    return arrays


def records(folder, count=12):
    """The published binary version, of few images."""
    colours = {}
    for name in [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]:
        rows = SOURCE.integers(256, size=(count, 3073)).astype(np.uint8)
        rows[:, 0] %= 10
        (folder / name).write_bytes(rows.tobytes())
        colours[name] = rows
    return colours


def test_archive(tmp_path, archive):
    data = load("cifar10_gray", tmp_path)
    assert (data.name, data.classes, data.length) == ("cifar10_gray", 10, 1024)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [54, 6, 20]
    # The 10th and the 20th of each of three classes, which come in turn.
    held = [27, 28, 29, 57, 58, 59]
    torch.testing.assert_close(data.valid.pixels, torch.from_numpy(archive["x_train"][held]).flatten(1), atol=0, rtol=0)
    assert data.valid.labels.tolist() == [0, 1, 2, 0, 1, 2]
    rest = np.delete(archive["x_train"], held, 0)
    torch.testing.assert_close(data.train.pixels, torch.from_numpy(rest).flatten(1), atol=0, rtol=0)
    assert data.test.labels.tolist() == archive["y_test"].tolist()
    assert data.train[0]["input_values"][5].item() == np.float32(archive["x_train"][0, 0, 5] / np.float32(255))


def test_binary_version(tmp_path):
    colours = records(tmp_path)
    data = load("cifar10_gray", tmp_path)
    assert len(data.train) + len(data.valid) == 60
    row = colours["test_batch.bin"][7]
    for pixel in (0, 500, 1023):
        red, green, blue = (int(row[1 + 1024 * colour + pixel]) for colour in range(3))
        assert abs(int(data.test.pixels[7, pixel]) - (0.299 * red + 0.587 * green + 0.114 * blue)) <= 0.501
    assert data.test.labels[7] == row[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": np.zeros((20, 32, 31), np.uint8)}, "found uint8 (20, 32, 31) and (20,)"),
        ({"x_test": np.zeros((20, 32, 32))}, "found float64 (20, 32, 32) and (20,)"),
        ({"y_test": np.zeros(19, np.uint8)}, "found uint8 (20, 32, 32) and (19,)"),
        ({"y_train": np.full(60, 10, np.uint8)}, "cifar10_gray.npz: labels must be in 0..9, found 10"),
        ({"y_train": np.array(["a"] * 60, object)}, "found a damaged file (Object arrays cannot be loaded"),
    ],
)
def test_damaged_archive(tmp_path, archive, change, message):
    np.savez(tmp_path / "cifar10_gray.npz", **archive | change)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load("cifar10_gray", tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 half"])
def test_no_archive(tmp_path, content):
    (tmp_path / "cifar10_gray.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"^cifar10_gray\.npz: expected x_train, y_train, x_test and y_test, found a"):
        load("cifar10_gray", tmp_path)


def test_missing_and_damaged_binary_version(tmp_path):
    with pytest.raises(ValueError, match=r"^cifar10_gray needs the folder that holds its files, got none$"):
        load("cifar10_gray")
    with pytest.raises(FileNotFoundError, match=r"is not a folder$"):
        load("cifar10_gray", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"^cifar10_gray needs cifar10_gray\.npz, or data_batch_1\.bin to"):
        load("cifar10_gray", tmp_path)
    records(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(bytes(3072))
    with pytest.raises(ValueError, match=r"^data_batch_3\.bin: expected records of 3073 bytes, found 3072 bytes$"):
        load("cifar10_gray", tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(ValueError, match=r"^data_batch_3\.bin: labels must be in 0\.\.9, found 10$"):
        load("cifar10_gray", tmp_path)


def test_the_subset():
    if not SHARED.is_dir():
        pytest.skip("shared/data/cifar10_gray is not beside the repository on this machine")
    data = load("cifar10_gray", SHARED)
    for part, count in ((data.train, 720), (data.valid, 80), (data.test, 200)):
        assert part.labels.bincount().tolist() == [count] * 10
    assert data.train.pixels.shape == (7_200, 1024)
    few = load("cifar10_gray", SHARED, limit=50, pool=4)
    assert [len(part) for part in (few.train, few.valid, few.test)] == [50, 50, 50]
    assert few.length == 64
