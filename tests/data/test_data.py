import gzip
import struct
import zlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from greenformers.data import Splits, load, load_images, names

MNIST = Path(__file__).parents[2].parent / "shared/data/mnist"
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(*dims, data=None, magic=None):
    size = torch.Size(dims).numel()
    data = bytes(i % 10 for i in range(size)) if data is None else data
    return (magic or bytes((0, 0, 8, len(dims)))) + struct.pack(f">{len(dims)}I", *dims) + data


@pytest.fixture
def folder(tmp_path):
    """A sound data set of 23 training and 13 test images; one of its files is gzipped."""
    (tmp_path / IMAGES).write_bytes(idx(23, 28, 28))
    (tmp_path / LABELS).write_bytes(idx(23))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(13, 28, 28))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(13), mtime=0))
    return tmp_path


@pytest.fixture(scope="module")
def mnist():
    if not MNIST.is_dir():
        pytest.skip("the MNIST files (shared/data/mnist beside the repository) are not on this machine")
    return load("mnist", MNIST)


def message(kind, name, *args, **options):
    with pytest.raises(kind) as caught:
        load(name, *args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names():
    assert names() == [
        "cifar10_gray", "digits", "imdb", "listops", "mnist", "multi30k", "omniglot", "path_x", "pathfinder",
        "qnli", "same_article", "scitldr", "sst2", "stsb", "tinyshakespeare", "wikitext2", "wikitext_articles",
        "wnut17",
    ]  # fmt: skip


def test_digits():
    splits = load("digits")
    assert (splits.name, splits.classes, splits.length) == ("digits", 10, 64)
    assert splits.train.values.shape == (1437, 64, 1)
    assert splits.test.values.shape == (360, 64, 1)
    for split in (splits.train, splits.test):
        assert split.values.dtype == torch.float32
        assert split.values.aminmax() == (0, 1)
        assert split.labels.dtype == torch.int64
        share = split.labels.bincount() / len(split)
        torch.testing.assert_close(share, torch.full((10,), 0.1), atol=0.004, rtol=0)


def test_digits_are_split_once_and_for_all():
    first, second = load("digits", seed=0), load("digits", seed=1)
    torch.testing.assert_close(first.test.pixels, second.test.pixels, atol=0, rtol=0)
    images = torch.cat([first.train.pixels, first.test.pixels])
    assert len(images.unique(dim=0)) == len(images)  # no image is in both, or twice in one


def test_items_are_what_the_trainer_feeds():
    split = load("digits").test
    item = split[7]
    assert item["input_values"].shape == (64, 1)
    assert item["labels"].shape == ()
    batch = next(iter(DataLoader(split, batch_size=11)))
    assert batch.keys() == {"input_values", "labels"}
    torch.testing.assert_close(batch["input_values"], split.values[:11], atol=0, rtol=0)
    torch.testing.assert_close(batch["labels"], split.labels[:11], atol=0, rtol=0)
    torch.testing.assert_close(batch["input_values"][7], item["input_values"], atol=0, rtol=0)
    assert batch["labels"][7] == item["labels"]


@pytest.mark.parametrize("pool", [1, 2, 4, 8])
def test_pool_averages(pool):
    whole, pooled = load("digits").train, load("digits", pool=pool)
    expected = F.avg_pool2d(whole.values.view(-1, 1, 8, 8), pool).flatten(1).unsqueeze(-1)
    assert pooled.length == (8 // pool) ** 2
    assert pooled.train.values.dtype == torch.float32
    torch.testing.assert_close(pooled.train.values, expected)
    torch.testing.assert_close(pooled.train.labels, whole.labels)


def test_limit_keeps_the_proportions():
    for limit in (10, 37, 101, 1436):
        whole, drawn = load("digits"), load("digits", limit=limit)
        for split, part in ((whole.train, drawn.train), (whole.test, drawn.test)):
            assert len(part) == min(limit, len(split))
            quota = split.labels.bincount() * len(part) / len(split)
            assert (part.labels.bincount(minlength=10) - quota).abs().max() <= 1
            assert part.labels.unique().tolist() == list(range(10))


def test_limit_draws_by_the_seed_without_replacement():
    first, again, other = (load("digits", limit=53, seed=seed).train.pixels for seed in (3, 3, 4))
    larger = load("digits", limit=97, seed=3).train.pixels
    torch.testing.assert_close(first, again, atol=0, rtol=0)
    assert not torch.equal(first, other)
    assert len(first.unique(dim=0)) == 53
    assert {tuple(row) for row in first.tolist()} < {tuple(row) for row in larger.tolist()}


def test_limit_gives_a_rare_class_its_example(folder):
    (folder / LABELS).write_bytes(idx(23, data=bytes([0] * 14 + list(range(1, 10)))))
    labels = load("mnist", folder, limit=11).train.labels
    assert labels.bincount().tolist() == [2, 1, 1, 1, 1, 1, 1, 1, 1, 1]


def test_limit_above_the_size_takes_all():
    whole, drawn = load("digits"), load("digits", limit=1437)
    torch.testing.assert_close(drawn.train.pixels, whole.train.pixels, atol=0, rtol=0)
    torch.testing.assert_close(drawn.test.pixels, whole.test.pixels, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("cifar", {}, f"data set must be one of {', '.join(names())}, got 'cifar'"),
        ("__init__", {}, f"data set must be one of {', '.join(names())}, got '__init__'"),
        ("digits", {"folder": "here"}, "digits comes with the package and takes no folder, got 'here'"),
        ("digits", {"limit": 9}, "limit must be at least 10, the classes of digits, got 9"),
        ("digits", {"limit": 0}, "limit must be at least 10, the classes of digits, got 0"),
        ("digits", {"pool": 3}, "pool must be one of 1, 2, 4, 8 for 8x8 images, got 3"),
        ("digits", {"pool": 0}, "pool must be one of 1, 2, 4, 8 for 8x8 images, got 0"),
        ("digits", {"seed": -1}, "seed must be in 0..4294967295, got -1"),
        ("digits", {"seed": 2**32}, "seed must be in 0..4294967295, got 4294967296"),
        ("mnist", {}, "mnist needs the folder that holds its idx files, got none"),
        ("digits", {"dataset": "ylecun/mnist"}, "digits is images and takes no dataset, got 'ylecun/mnist'"),
        ("wikitext2", {"folder": "here", "pool": 2}, "pool is for images, wikitext2 is text: pool must be 1, got 2"),
    ],
)
def test_arguments_out_of_range(name, options, expected):
    assert message(ValueError, name, **options) == expected


def test_images_only():
    drawn = load_images("digits", limit=23, pool=2, seed=5)
    torch.testing.assert_close(drawn.train.pixels, load("digits", None, 23, 2, 5).train.pixels, atol=0, rtol=0)
    assert drawn.length == 16
    images = "cifar10_gray, digits, mnist, omniglot, path_x, pathfinder"
    with pytest.raises(ValueError, match=f"^data set 'sst2' is text; images are needed here: one of {images}$"):
        load_images("sst2", "here")
    with pytest.raises(ValueError, match=r"^data set must be one of cifar10_gray, digits, .*, got 'cifar'$"):
        load_images("cifar")
    with pytest.raises(ValueError, match=r"^seed must be in 0\.\.4294967295, got -1$"):
        load_images("digits", seed=-1)


def test_mnist(mnist: Splits):
    assert (mnist.name, mnist.classes, mnist.length) == ("mnist", 10, 784)
    assert len(mnist.train) == 60_000
    assert len(mnist.test) == 10_000
    assert mnist.train.pixels.dtype == torch.uint8
    # The published class counts and the first labels of each file.
    assert mnist.train.labels.bincount().tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]
    assert mnist.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    # The published mean and deviation of the training intensities.
    values = mnist.train.pixels.double() / 255
    torch.testing.assert_close(values.mean().item(), 0.1307, atol=5e-5, rtol=0)
    torch.testing.assert_close(values.std().item(), 0.3081, atol=5e-5, rtol=0)
    assert mnist.test.values.aminmax() == (0, 1)


def test_mnist_limit_and_pool(mnist: Splits):
    drawn = load("mnist", MNIST, limit=500, pool=2, seed=5)
    assert drawn.length == 196
    for split, part in ((mnist.train, drawn.train), (mnist.test, drawn.test)):
        assert part.values.shape == (500, 196, 1)
        quota = split.labels.bincount() * 500 / len(split)
        assert (part.labels.bincount() - quota).abs().max() <= 1
    expected = "pool must be one of 1, 2, 4, 7, 14, 28 for 28x28 images, got 3"
    assert message(ValueError, "mnist", MNIST, pool=3) == expected


def test_idx_pixels_keep_their_places(folder):
    splits = load("mnist", str(folder))
    assert splits.train.pixels.flatten().tolist() == [i % 10 for i in range(23 * 784)]
    assert splits.train.labels.tolist() == [i % 10 for i in range(23)]
    torch.testing.assert_close(splits.test[3]["input_values"][5], torch.tensor([((3 * 784 + 5) % 10) / 255]))
    assert len(splits.test) == 13


def test_gzip_and_plain_read_alike(folder):
    plain = load("mnist", folder)
    (folder / IMAGES).rename(folder / "plain")
    (folder / f"{IMAGES}.gz").write_bytes(gzip.compress((folder / "plain").read_bytes()))
    torch.testing.assert_close(load("mnist", folder).train.pixels, plain.train.pixels, atol=0, rtol=0)


def test_mnist_folder_or_file_missing(folder):
    missing = message(FileNotFoundError, "mnist", folder / "nowhere")
    assert missing == f"mnist needs the folder that holds its idx files, '{folder / 'nowhere'}' is not a folder"
    assert message(FileNotFoundError, "mnist", folder / IMAGES).endswith("is not a folder")
    (folder / LABELS).unlink()
    expected = f"mnist needs {LABELS} or {LABELS}.gz, neither is in folder '{folder}'"
    assert message(FileNotFoundError, "mnist", folder) == expected


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        (IMAGES, b"", ": expected a header of 16 bytes, found 0"),
        (IMAGES, idx(23, 28, 28)[:15], ": expected a header of 16 bytes, found 15"),
        (IMAGES, idx(23, 28, 28)[:-1], ": expected 18032 bytes after the header, found 18031"),
        (IMAGES, idx(23, 28, 28) + b"\0", ": expected 18032 bytes after the header, found more"),
        (IMAGES, idx(23, 28, 28, data=b""), ": expected 18032 bytes after the header, found 0"),
        (IMAGES, idx(23, 29, 31), ": expected images of 28x28, found 29x31"),
        (IMAGES, idx(23, 784), ": expected magic number 0x00000803, found 0x00000802"),
        (IMAGES, gzip.compress(idx(23, 28, 28), mtime=0), ": expected magic number 0x00000803, found 0x1f8b0800"),
        (
            IMAGES,
            idx(23, 28, 28, magic=b"\0\0\x0d\3"),
            ": expected magic number 0x00000803, found 0x00000d03",
        ),
        (IMAGES, idx(0, 28, 28), ": number of items must be in 1..60000, found 0"),
        (
            IMAGES,
            idx(2**32 - 1, 28, 28, data=b"1"),
            ": number of items must be in 1..60000, found 4294967295",
        ),
        (LABELS, idx(23, 1), ": expected magic number 0x00000801, found 0x00000802"),
        (LABELS, idx(2**32 - 1, data=b"1"), ": number of items must be in 1..60000, found 4294967295"),
        (LABELS, idx(23, data=bytes([10] * 23)), ": labels must be in 0..9, got 10"),
        (LABELS, idx(22), f" must have 23 labels as {IMAGES}, got 22"),
    ],
)
def test_damaged_idx(folder, file, content, expected):
    (folder / file).write_bytes(content)
    assert message(ValueError, "mnist", folder) == file + expected


def flipped(data, place):
    return data[:place] + bytes((data[place] ^ 0xFF,)) + data[place + 1 :]


PACKED = gzip.compress(idx(23, 28, 28), mtime=0)


@pytest.mark.parametrize(
    "content",
    [
        PACKED[: len(PACKED) // 2],
        PACKED[:5],
        PACKED[:-3],
        idx(23, 28, 28),
        flipped(PACKED, -8 % len(PACKED)),
        flipped(PACKED, 10),
        PACKED + b"and more",
    ],
    ids=["half", "header", "no end", "not gzip", "wrong sum", "not deflate", "more"],
)
def test_damaged_gzip(folder, content):
    (folder / IMAGES).unlink()
    (folder / f"{IMAGES}.gz").write_bytes(content)
    error = message(ValueError, "mnist", folder)
    assert error.startswith(f"{IMAGES}.gz: expected a whole gzip file, found a damaged one (")


def test_gzip_bomb_is_not_unpacked(folder):
    packer = zlib.compressobj(wbits=31)
    content = packer.compress(idx(2, 28, 28) + bytes(2**26)) + packer.flush()
    (folder / IMAGES).unlink()
    (folder / f"{IMAGES}.gz").write_bytes(content)
    expected = f"{IMAGES}.gz: expected 1568 bytes after the header, found more"
    assert message(ValueError, "mnist", folder) == expected
