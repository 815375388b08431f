"""What blocks are called with besides hidden states: on disk, and read back as it was."""

from pathlib import Path

import torch
from torch import Tensor

from greenformers._torch import leaves
from greenformers.compress.blocks import Arguments
from greenformers.compress.states import Calls

ROWS, LENGTH, WIDTH = 2, 5, 3


def called(seed: int) -> list[Arguments]:
    """Two blocks, with rotary embeddings in common, and masks of their own."""
    source = torch.Generator().manual_seed(seed)
    positions = torch.arange(LENGTH)
    angles = torch.randn(1, LENGTH, WIDTH, generator=source)
    common = {
        "position_embeddings": (angles.cos(), angles.sin().to(torch.bfloat16)),
        "frequencies": torch.polar(torch.ones_like(angles), angles),
        "cache_position": positions,
        "position_ids": positions[None],  # a view
        "past_key_values": None,
        "use_cache": False,
    }
    masks = [torch.randn(ROWS, 1, 1, LENGTH, generator=source) > bound for bound in (0, 1)]
    return [Arguments((mask.expand(-1, -1, LENGTH, -1),), dict(common)) for mask in masks]


def test_they_come_back_as_they_were(tmp_path: Path) -> None:
    calls, batches = Calls(tmp_path / "calls"), [called(seed) for seed in range(3)]
    for by_block in batches:
        calls.add(by_block)
    assert len(calls) == len(batches)
    for number, by_block in enumerate(batches):
        read = calls.read(number, range(2))
        ours, theirs = leaves(read), leaves(by_block)
        assert [type(arguments) for arguments in read] == [Arguments, Arguments]
        assert [arguments.named.keys() for arguments in read] == [arguments.named.keys() for arguments in by_block]
        for x, y in zip(ours, theirs, strict=True):
            assert (x is y) if not isinstance(y, Tensor) else (x.equal(y) and x.dtype == y.dtype)
        assert read[0].named["frequencies"].is_complex()
        # A tensor of both blocks is one tensor.
        assert read[0].named["position_ids"] is read[1].named["position_ids"]
        (second,) = calls.read(number, [1])
        assert second.positional[0].equal(by_block[1].positional[0])


def test_no_tensor_of_them_is_held(tmp_path: Path) -> None:
    calls = Calls(tmp_path / "calls")
    for seed in range(3):
        calls.add(called(seed))
    assert not any(isinstance(leaf, Tensor) for leaf in leaves(calls._forms))
    assert calls._forms[0] is calls._forms[1] is calls._forms[2]
    assert len(list((tmp_path / "calls").iterdir())) == 3


def test_another_process_writes_them(tmp_path: Path) -> None:
    first, second = Calls(tmp_path / "calls"), Calls(tmp_path / "calls")
    for seed in range(2):
        first.add(called(seed), write=seed == 0)
        second.add(called(seed), write=seed == 1)
    assert leaves(first.read(1, [0]))[0].equal(leaves(called(1))[0])
    assert leaves(second.read(0, [0]))[0].equal(leaves(called(0))[0])


def test_without_tensors_nothing_is_written(tmp_path: Path) -> None:
    calls = Calls(tmp_path / "calls")
    calls.add([Arguments((None,), {"use_cache": False})])
    assert calls.read(0, [0]) == [Arguments((None,), {"use_cache": False})]
    assert not (tmp_path / "calls").exists()
