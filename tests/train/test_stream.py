"""The order of examples: a function of seed and number, and nothing else."""

import pytest
import torch
from tiny import TEXT, characters

from greenformers.train.masked_lm import MaskedLM
from greenformers.train.objective import Objective
from greenformers.train.stream import Numbered, Stream, generator


class Counting(Objective):
    """Example i is i, with a number drawn for it."""

    def __init__(self, size: int, lengths: torch.Tensor | None = None) -> None:
        self._size, self.lengths = size, lengths

    def size(self, split):
        return self._size

    def example(self, split, index, source):
        return {"index": torch.tensor(index), "drawn": torch.rand((), generator=source)}

    collate = config = build = evaluate = None


Counting.__abstractmethods__ = frozenset()


def items(stream: Stream, order=None) -> list[tuple[int, float]]:
    examples = {n: stream[n] for n in (range(len(stream)) if order is None else order)}
    return [(int(examples[n]["index"]), float(examples[n]["drawn"])) for n in sorted(examples)]


@pytest.mark.parametrize("lengths", [None, torch.arange(53) % 7])
def test_an_epoch_is_a_permutation_cut_to_whole_batches(lengths) -> None:
    stream = Stream(Counting(53, lengths), 5, 30, seed=3)
    assert stream.steps_an_epoch == 10
    assert len(stream) == 150
    indices = [index for index, _ in items(stream)]
    epochs = [indices[start : start + 50] for start in (0, 50, 100)]
    for epoch in epochs:
        assert len(set(epoch)) == 50
        assert set(epoch) < set(range(53))
    assert len({tuple(epoch) for epoch in epochs}) == 3
    other = [index for index, _ in items(Stream(Counting(53, lengths), 5, 10, seed=4))]
    assert other != epochs[0]


def test_the_longest_examples_are_learned_from() -> None:
    lengths = torch.arange(23) % 5
    indices = {index for index, _ in items(Stream(Counting(23, lengths), 4, 30, seed=0))}
    assert indices == set(range(23))


def test_every_number_is_drawn_anew() -> None:
    drawn = [value for _, value in items(Stream(Counting(10), 5, 40, seed=0))]
    assert len(set(drawn)) == 200
    assert 0.4 < sum(drawn) / 200 < 0.6


@pytest.mark.parametrize("lengths", [None, torch.arange(23) % 5])
def test_an_item_depends_on_seed_and_number_alone(lengths) -> None:
    whole = items(Stream(Counting(23, lengths), 4, 15, seed=7))
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0)).tolist()
    assert items(Stream(Counting(23, lengths), 4, 15, seed=7), order) == whole
    # A longer run begins as a shorter one.
    assert items(Stream(Counting(23, lengths), 4, 20, seed=7))[:60] == whole
    # Begun in the middle, as a resumed run is.
    late = Stream(Counting(23, lengths), 4, 15, seed=7)
    assert [int(late[n]["index"]) for n in range(41, 60)] == [index for index, _ in whole[41:]]


def test_batches_of_like_length_have_less_padding_and_lose_no_example() -> None:
    lengths = torch.randint(1, 40, (600,), generator=torch.Generator().manual_seed(1))

    def padding(order: torch.Tensor) -> int:
        batches = lengths[order].view(-1, 6)
        return int((batches.max(1, keepdim=True).values - batches).sum())

    sorted_, plain = (
        torch.tensor([index for index, _ in items(Stream(Counting(600, given), 6, 100, seed=2))])
        for given in (lengths, None)
    )
    assert sorted(sorted_.tolist()) == sorted(plain.tolist()) == list(range(600))
    assert padding(sorted_) < 0.1 * padding(plain)
    # Batches of every length come early and late: their order is random.
    means = lengths[sorted_].view(-1, 6).double().mean(1)
    assert abs(torch.corrcoef(torch.stack([means, torch.arange(100.0).double()]))[0, 1]) < 0.3


def test_a_batch_larger_than_the_training_set_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^batch must be at most 7, the training examples, got 8$"):
        Stream(Counting(7), 8, 1, seed=0)


def test_neighbouring_seeds_have_sequences_of_their_own() -> None:
    tuples = [(a, b, c) for a in range(6) for b in range(6) for c in range(6)] + [(1,), (1, 0), (0, 1), (0, 0, 1, 0)]
    seeds = [generator(*numbers).initial_seed() for numbers in tuples]
    assert len(set(seeds)) == len(tuples)
    first = torch.stack([torch.rand(8, generator=generator(0, n)) for n in range(500)])
    assert len(set(first.flatten().tolist())) == 4000
    # Neighbours are no more alike than strangers: correlation of 8 x 499 pairs, 4 sigma.
    assert abs(torch.corrcoef(torch.stack([first[1:].flatten(), first[:-1].flatten()]))[0, 1]) < 4 / 3992**0.5
    torch.testing.assert_close(torch.rand(5, generator=generator(3, 4)), torch.rand(5, generator=generator(3, 4)))


def test_numbered_gives_the_same_masks_every_time() -> None:
    objective = MaskedLM(TEXT, characters(), 16)
    once, again = Numbered(objective, "valid"), Numbered(objective, "valid", [4, 2])
    assert len(once) == objective.size("valid") == len(TEXT.valid) // 14
    torch.rand(3)  # the global generator has no part in it
    for place, index in enumerate([4, 2]):
        for name in ("input_ids", "labels"):
            assert torch.equal(once[index][name], again[place][name])
    masks = {tuple((once[index]["labels"] != -100).tolist()) for index in range(len(once))}
    assert len(masks) > len(once) // 2  # every example has its own
    # In training they are new each time.
    stream = Stream(objective, len(objective.blocks("train")), 2, seed=0)
    seen = {}
    for n in range(len(stream)):
        example = stream[n]
        text = tuple(example["labels"].where(example["labels"] != -100, example["input_ids"]).tolist())
        seen.setdefault(text, set()).add(tuple(example["input_ids"].tolist()))
    assert max(map(len, seen.values())) > 1
