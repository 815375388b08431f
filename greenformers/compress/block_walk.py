"""The way through a network: section by section is read, changed with what those before it give, and written.

A section is one block, or a few that follow each other.

Several processes, which see the same folders, go together: each runs the blocks on its share of the batches, all change
a block alike, and the first writes it.
"""

import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from greenformers.changes import Change, Given
from greenformers.changes._options import as_dict
from greenformers.changes._report import CompressionReport, Report, Step, UnitReport
from greenformers.checkpoint.place import settle
from greenformers.checkpoint.structure import mark, structure
from greenformers.compress.block_memory import IDS, STATISTICS, called, working
from greenformers.compress.block_work import AROUND, Part, Work
from greenformers.compress.blocks import Blocks, read_tensors
from greenformers.compress.states import Inputs, Outputs, States
from greenformers.measure.limit import free
from greenformers.measure.parameters import bytes_of, parameters
from greenformers.measure.quality import evaluating
from greenformers.model.experts import as_modules
from greenformers.solve.loss import output
from greenformers.solve.share import Share, check_share
from greenformers.solve.walk import check_patterns
from greenformers.solve.watch import Batch, call
from greenformers.train.processes import alone, first_process, processes, processes_here, rank, wait

TOKENS = 1024
"""Most tokens in a batch: they bound the memory that a pass of a block takes."""

Progress = Callable[[str, float], None]


def in_parts(batches: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The batches in parts of at most `TOKENS` tokens, or of one text.

    Raises:
        ValueError: There is no batch, or one has no tokens.
    """
    parts = []
    for batch in batches:
        ids = batch.get(IDS) if isinstance(batch, Mapping) else None
        if not isinstance(ids, Tensor) or ids.dim() != 2 or not ids.numel():
            raise ValueError(f"block by block, from disk, a batch must be a mapping with {IDS} (B, N)")
        size = max(1, TOKENS // ids.shape[1])
        parts += [{name: x[at : at + size] for name, x in batch.items()} for at in range(0, len(ids), size)]
    if not parts:
        raise ValueError("the calibration data must hold at least one batch, got none")
    return parts


class Walk:
    """The way through the blocks of a network.

    Args:
        blocks: The network.
        changes: The recipe.
        batches: Examples to calibrate with, in parts.
        work: What is finished, on disk.
        seed: Seed of random numbers.
        progress: Function that is called as work goes on.
    """

    def __init__(
        self, blocks: Blocks, changes: list[Change], batches: list[dict[str, Tensor]], work: Work, seed: int,
        progress: Progress,
    ) -> None:  # fmt: skip
        self.blocks, self.changes, self.batches, self.work = blocks, changes, batches, work
        self.seed, self.progress = seed, progress
        self.masks = [_padding(batch) for batch in batches]
        self.calls = work.calls()
        self.stated = 0
        # Only the first change is made of the network as it was; what trains learns what that gave.
        self.compares = changes[0].reads_original or any(change.trains for change in changes)
        self.own = range(rank(), len(batches), processes())

    def parts(self) -> list[Part]:
        """The finished parts, in order."""
        return [part for number in self._numbers if (part := self.work.part(number)) is not None]

    def check(self) -> str:
        """Check, before anything is written, that the recipe can be applied and that memory and disk suffice.

        Returns:
            One line that says how much of both it takes.

        Raises:
            ValueError: They do not, or it cannot.
        """
        self._check_together()
        with as_modules(self.blocks.model):
            for change in self.changes:
                check_patterns(self.blocks.model, getattr(change, "select", None) or ())
        held, room = psutil.Process().memory_info().rss, free(torch.device("cpu"))
        first = self.blocks.network(0, self.blocks.read(0))
        shortest = min(self.batches, key=lambda batch: batch[IDS].shape[1])
        batch = {name: x[:1] for name, x in shortest.items()}
        self.blocks.learn(batch, first)
        with self.blocks.embedding(self.blocks.read(None)) as embed:
            states, arguments = embed(batch)
            disk = called(embed, self.batches, self.masks)
        given = {"hidden_states": states, "arguments": self.blocks.of(0, arguments)}
        mask = _padding(batch)
        calibration = [given if mask is None else {**given, "attention_mask": mask}]
        before: list[type[Change]] = []
        for step, change in enumerate(self.changes):
            if (own := change.in_block(first)) is not None:
                following = tuple(self.changes[step + 1 :])
                own.check(first, before, Given(calibration=calibration, part=True, following=following))
            elif change.around_blocks(self.blocks.model) is None:
                where = self.blocks.name(0)
                raise ValueError(f"{change.label} has nothing to change in {where}, nor around the blocks")
            before += change.traces
        width, itemsize = states.shape[-1], states.element_size()
        tokens = sum(batch[IDS].numel() for batch in self.batches)
        disk += 2 * (1 + self.compares) * tokens * width * itemsize + sum(map(self.blocks.bytes, self._numbers))
        self.stated = held + working(self.blocks, self.changes, self.batches, first, width)
        available = shutil.disk_usage(self.work.folder.parent).free
        there = sum(path.stat().st_size for path in self.work.folder.rglob("*") if path.is_file())
        if available + there < disk:
            raise ValueError(
                f"{disk / 2**30:.1f} GiB of disk are needed beside the result, {available / 2**30:.1f} are free"
            )
        memory = processes_here() * (self.stated - held)
        if room < memory:
            raise ValueError(f"{memory / 2**30:.1f} GiB of memory are needed, {room / 2**30:.1f} are free")
        each = "" if alone() else f" in each of {processes()} processes"
        return (
            f"{self.blocks.in_words}: at most {self.stated / 2**30:.2f} GiB of memory{each}, "
            f"{disk / 2**30:.2f} GiB of disk; hidden states in {str(states.dtype).removeprefix('torch.')}"
        )

    def _check_together(self) -> None:
        """Check that several processes can go this way together.

        Raises:
            ValueError: A change cannot share what it looks at, or there are fewer batches than processes.
        """
        if alone():
            return
        check_share(len(self.batches))
        for change in self.changes:
            if change.trains or ("calibration" in change.uses and not change.shares):
                raise ValueError(f"block by block, {change.label} is the work of one process, not of {processes()}")

    @property
    def _numbers(self) -> list[int | None]:
        return [*range(self.blocks.count), None]

    def run(self) -> None:
        """Change the parts that are not finished."""
        if self.work.part(None) is not None:
            return
        count = self.blocks.count
        self._embed()
        first = next((number for number in range(count) if self.work.part(number) is None), count)
        for number in range(first):
            self._drop(number)
        for number, tensors in self._ahead(range(first, count)):
            self._block(number, tensors)
            self._drop(number)
        self._around()
        self._drop(count)

    def _keep(self, number: int | None, tensors: Mapping[str, Tensor], part: Part) -> None:
        """Write a finished part, after the last process has written what it gives; the others wait for that."""
        wait()
        if first_process():
            self.work.keep(number, tensors, part)
        wait()

    def _ahead(self, numbers: Sequence[int]) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """The tensors of sections; those of the next one are read while one is changed."""
        with ThreadPoolExecutor(1) as reader:
            waiting: list[Future[dict[str, Tensor]]] = []
            for number in numbers:
                tensors = waiting.pop() if waiting else reader.submit(self.blocks.read, number)
                if number + 1 in numbers:
                    waiting.append(reader.submit(self.blocks.read, number + 1))
                yield number, tensors.result()

    def _drop(self, number: int) -> None:
        """Remove the hidden states that a finished section has read."""
        for original in (False, True) if first_process() else ():
            self.work.states(number, original=original).remove()

    def _embed(self) -> None:
        """Run what stands before the blocks: what blocks are called with, and what the first one reads."""
        states, begun = self.work.states(0), self.work.part(0) is not None
        with self.blocks.embedding(self.blocks.read(None)) as embed:
            for number, batch in enumerate(self.batches):
                hidden, arguments = embed(batch)
                self.calls.add(arguments, write=number in self.own)
                if number in self.own and not (begun or states.has(number)):
                    states.write(number, hidden)
                self.progress("embedding", (number + 1) / len(self.batches))
        wait()

    def _inputs(self, number: int, *, original: bool = False) -> Inputs:
        states = self.work.states(number, original=original and number > 0)
        return Inputs(states, self.calls, self.blocks.sections[number], self.masks)

    def _pass(self, network: nn.Module, inputs: Inputs, states: States) -> None:
        """Write what a section gives."""
        with evaluating(network), torch.no_grad():
            for number in self.own:
                states.write(number, call(network, inputs[number]))

    def _block(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        network, name = self.blocks.network(number, tensors), self.blocks.name(number)
        inputs, original = self._inputs(number), None
        if self.compares:
            original = self._inputs(number, original=True)
            self._pass(network, original, self.work.states(number + 1, original=True))
        outputs = Outputs(self.work.states(number + 1, original=True), len(inputs)) if self.compares else None
        part = self._changed(network, inputs, original, lambda change: change.in_block(network), name, outputs)
        self._pass(network, inputs, self.work.states(number + 1))
        self._keep(number, network.state_dict(), part)

    def _around(self) -> None:
        """Change embeddings and output layers, which read what the last block gives."""
        changed = self.work.states(self.blocks.count)
        inputs: list[Noted] = [(batch, changed, number) for number, batch in enumerate(self.batches)]
        original = None
        if self.compares:  # the same tokens in other tensors, by which the two are told apart
            states = self.work.states(self.blocks.count, original=True)
            original = [{name: x.view_as(x) for name, x in batch.items()} for batch in self.batches]
            inputs += [(batch, states, number) for number, batch in enumerate(original)]
        current = inputs[:1]

        def last() -> Tensor:
            _, states, number = current[0]
            return states.read(number)

        with (
            self.blocks.around(self.blocks.read(None), self.blocks.answering(last)) as model,
            _noted(model, inputs, current),
        ):
            part = self._changed(model, self.batches, original, lambda change: change.around_blocks(model), AROUND)
            tied = set(model.all_tied_weights_keys)
            inner = f"{self.blocks.path}."
            tensors = {key: x for key, x in model.state_dict().items() if key not in tied and not key.startswith(inner)}
            self._keep(None, tensors, part)

    def _changed(
        self, network: nn.Module, calibration: Sequence[Batch], original: Sequence[Batch] | None,
        fitted: Callable[[Change], Change | None], name: str, outputs: Outputs | None = None,
    ) -> Part:  # fmt: skip
        """Apply the changes of the recipe to a part."""
        units: list[list[dict[str, Any]]] = []
        sizes, seconds = [], []
        example = calibration[0]  # of all processes the same
        if not alone():
            calibration, original = Share(calibration), None if original is None else Share(original)
        given = Given(
            calibration=calibration, original=original, example=example, outputs=outputs, part=True,
            memory=STATISTICS, seed=self.seed,
            progress=lambda done, share: self.progress(f"{name}, {done}", share),
        )  # fmt: skip
        for step, change in enumerate(self.changes):
            began = perf_counter()
            own = fitted(change)
            rows: Sequence[UnitReport] = ()
            if own is not None:
                following = tuple(self.changes[step + 1 :])
                rows = own.apply(network, replace(given, following=following)).units
                mark(network, [change.name()])
            given = replace(given, original=None)
            units.append([asdict(unit) for unit in rows])
            sizes.append([parameters(network), bytes_of(network)])
            seconds.append(perf_counter() - began)
        described = structure(network)
        return Part(described.changes, described.order, units, sizes, seconds, _peak())

    def report(self, stored: Mapping[str, Any]) -> CompressionReport:
        """The report of the finished parts."""
        parts = self.parts()
        peak = max(part.peak for part in parts)
        steps = []
        for step, change in enumerate(self.changes):
            units = [UnitReport(**unit | {"tied": tuple(unit["tied"])}) for part in parts for unit in part.units[step]]
            before, after = (sum(getattr(unit, name) for unit in units) for name in ("before", "after"))
            summary = (
                f"{self.blocks.in_words}, and what is around them: {len(units)} layers, "
                f"{before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB; at most {peak / 2**30:.2f} GiB of memory, "
                f"{self.stated / 2**30:.2f} were stated"
            )
            entries, size = (sum(part.sizes[step][at] for part in parts) for at in range(2))
            seconds = sum(part.seconds[step] for part in parts)
            steps.append(Step(Report(as_dict(change), summary, units), entries, size, seconds))
        before = sum(tensor.entries for tensor in stored.values()), sum(tensor.bytes for tensor in stored.values())
        return CompressionReport(steps, *before)

    @torch.no_grad()
    def try_again(self) -> None:
        """Run what was written on the first text, one section at a time.

        Raises:
            ValueError: Its outputs are not finite.
        """
        batch = {name: x[:1] for name, x in self.batches[0].items()}
        around = dict(read_tensors(self.work.file(None)))
        with self.blocks.embedding(around) as embed:
            states, arguments = embed(batch)
        for number in range(self.blocks.count):
            network = self.blocks.network(number, dict(read_tensors(self.work.file(number))))
            settle(network)
            states = call(network, {"hidden_states": states, "arguments": self.blocks.of(number, arguments)})
        with self.blocks.around(around, self.blocks.answering(lambda: states)) as model:
            settle(model)
            if not output(call(model, batch), batch).isfinite().all():
                raise ValueError("the network was not saved: what it gives for the first text is not finite")


Noted = tuple[Mapping[str, Tensor], States, int]
"""A batch, and where the hidden states are that the last block gives for it: those of a number."""


@contextmanager
def _noted(model: nn.Module, inputs: Sequence[Noted], current: list[Noted]) -> Iterator[None]:
    """A `with` block in which `current` holds the batch that a network is called with.

    It is told by its tensors, since a loss may call the network with more than the batch.
    """

    def note(_: nn.Module, __: object, given: Mapping[str, Any]) -> None:
        current[:] = [
            noted for noted in inputs if all(given.get(name) is x for name, x in noted[0].items() if name != "labels")
        ]

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _padding(batch: Mapping[str, Tensor]) -> Tensor | None:
    mask = batch.get("attention_mask")
    return mask if mask is not None and mask.dim() == 2 else None


def _peak() -> int:
    """Most bytes of memory that the process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
