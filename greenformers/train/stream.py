"""The order of training examples, a function of the seed alone, so that there is no state to save."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from greenformers.train.objective import Example, Objective

_POOL = 50  # batches among which examples are sorted by length


def generator(*seeds: int) -> torch.Generator:
    """A random number generator that is seeded by a tuple of numbers."""
    mixed = 0
    for seed in seeds:
        # splitmix64's constant and finaliser, so that the sequences of neighbouring tuples do not overlap.
        mixed = (mixed + seed + 0x9E3779B97F4A7C15) % 2**64
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return torch.Generator().manual_seed(mixed)


class Stream(Dataset[Example]):
    """Every example that a training run will see, in order: item n is the n-th, for n below steps x batch.

    An epoch is `len(train) // batch` whole batches in a new random order. Where examples have lengths, a batch
    has examples of similar length: those of every 50 batches are sorted by length, and the batches come in random
    order. Where examples are taken in their order, every epoch is the same.

    Args:
        objective: The objective that the model is trained for.
        batch: Examples a step, of all processes together.
        steps: Number of steps.
        seed: Seed of the order, and of anything random in an example.

    Raises:
        ValueError: A batch is larger than the training set.
    """

    def __init__(self, objective: Objective, batch: int, steps: int, seed: int) -> None:
        examples = objective.size("train")
        if batch > examples:
            raise ValueError(f"batch must be at most {examples}, the training examples, got {batch}")
        self.objective, self.batch, self.steps, self.seed = objective, batch, steps, seed
        self._epoch, self._order = -1, list[int]()

    @property
    def steps_an_epoch(self) -> int:
        """Whole batches in the training set."""
        return self.objective.size("train") // self.batch

    def __len__(self) -> int:
        return self.steps * self.batch

    def __getitem__(self, index: int) -> Example:
        epoch, place = divmod(index, self.steps_an_epoch * self.batch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.order(epoch).tolist()
        return self.objective.example("train", self._order[place], generator(self.seed, 1, index))

    def order(self, epoch: int) -> Tensor:
        """The examples of one epoch, in order."""
        if self.objective.in_order:
            # Each row of the batches reads a consecutive part of its own, from its start.
            return torch.arange(self.steps_an_epoch * self.batch).view(self.batch, -1).T.flatten()
        source = generator(self.seed, 0, epoch)
        # Cut to whole batches before they are sorted: afterwards the longest would be left out of every epoch.
        order = torch.randperm(self.objective.size("train"), generator=source)[: self.steps_an_epoch * self.batch]
        lengths = self.objective.lengths
        if lengths is not None:
            pools = order.split(_POOL * self.batch)
            order = torch.cat([pool[lengths[pool].argsort(stable=True)] for pool in pools])
        batches = order.view(-1, self.batch)
        if lengths is not None:
            batches = batches[torch.randperm(len(batches), generator=source)]
        return batches.flatten()


class Numbered(Dataset[Example]):
    """One split in its own order, with the same random draws every time, so that models can be compared."""

    def __init__(self, objective: Objective, split: str, indices: Sequence[int] | None = None) -> None:
        self.objective, self.split = objective, split
        self.indices = range(objective.size(split)) if indices is None else indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> Example:
        index = self.indices[place]
        return self.objective.example(self.split, index, generator(0, 2, index))
