"""A recipe with calibration data from disk to disk, one block of the network in memory at a time.

The texts are embedded once. Then, block after block: its weights are read, the changes of the recipe are applied to it
as to a network of its own, with the hidden states that the changed blocks before it give; the changed block gives those
of the next one and is written. Hidden states and finished blocks lie in a folder beside the result, so that the same
command goes on where it was stopped, to the same bits. Embeddings and output layers come last, in the same way.
"""

import hashlib
import json
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import psutil
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from greenformers.changes import Change, Given
from greenformers.changes._contract import Report, UnitReport
from greenformers.changes._options import as_dict
from greenformers.changes._report import CompressionReport, Step
from greenformers.checkpoint.description import Description
from greenformers.checkpoint.guard import guards_of
from greenformers.checkpoint.place import place, settle
from greenformers.checkpoint.save import building, check_place, describe
from greenformers.checkpoint.structure import ORDER, mark, structure
from greenformers.compress.blocks import Arguments, Blocks, OneBlock, read_tensors
from greenformers.compress.from_disk import INDEX, carry, check_written, skeleton, transformer_of
from greenformers.compress.states import Inputs, States
from greenformers.measure.limit import free
from greenformers.measure.parameters import bytes_of, parameters
from greenformers.measure.quality import evaluating
from greenformers.solve.loss import output
from greenformers.solve.walk import sites
from greenformers.solve.watch import Batch, call

TOKENS = 2048
"""Most tokens in a batch: they bound the memory that a pass of a block takes."""
STATISTICS = 2**28
"""Bytes of statistics that are held at once, beyond those of one group of layers."""
AROUND = "around"
"""Name of the part before and behind the blocks."""

Progress = Callable[[str, float], None]


def compress_block_by_block(
    folder: str | Path,
    out: str | Path,
    changes: Sequence[Change],
    batches: Sequence[Mapping[str, Tensor]],
    *,
    seed: int = 0,
    blocks: int | None = None,
    progress: Progress = lambda *_: None,
    told: Callable[[str], None] = lambda _: None,
) -> CompressionReport:
    """Change the checkpoint in a folder into another, with one block of it in memory at a time.

    Args:
        folder: Folder of a model of transformers with weights in safetensors.
        out: Folder for the changed model; `greenformers.load` and `from_pretrained` read it.
        changes: The recipe; all of its changes must have a form block by block.
        batches: Examples to calibrate with, as keyword arguments of the network; masks tell what is padding.
        seed: Seed of random numbers.
        blocks: Number of blocks after which to stop, to be continued by the same call; by default all.
        progress: Function that is called as work goes on.
        told: Function that is told, before work begins, how much memory and disk it takes.

    Returns:
        The report of the recipe, as far as it was done.

    Raises:
        ValueError: Files are damaged, foreign or do not fit the configuration; the network is not made of one stack of
            blocks; a change has no form block by block; or memory or disk is too small.
        FileExistsError: Beside `out` lies the unfinished work of another recipe or of other examples.
        OSError: A file cannot be read or written.
    """
    folder, out = Path(folder), Path(out)
    check_changes(changes)
    check_place(out)
    folder, modules = transformer_of(folder)
    model, stored = skeleton(folder, buffers=True)
    cached = getattr(model.config, "use_cache", None)
    if cached is not None:
        model.config.use_cache = False  # which would be part of what blocks are called with
    whole = Blocks(model, stored)
    batches = in_parts(batches)
    work = Work.of(out, [str(folder.resolve()), [as_dict(change) for change in changes], seed], folder, batches)
    walk = _Walk(whole, list(changes), batches, work, seed, progress)
    told(walk.check())
    walk.run(whole.count if blocks is None else min(blocks, whole.count))
    if not walk.complete:
        return walk.report(stored)
    guards = [name for name in guards_of(model) if name in stored]
    with building(out) as unfinished:
        work.write(unfinished, [*range(whole.count), None], guards)
        order: list[str] = [change.name() for change in changes]
        for part in walk.parts:
            described = Description(part.description, part.order)
            place(model, described)
            order += described.order
        setattr(model, ORDER, list(dict.fromkeys(order)))
        described = structure(model)
        described.guards = guards
        if cached is not None:
            model.config.use_cache = cached
        model.config.quantization_config = described
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(unfinished)
        check_written(unfinished, type(model))
        carry(folder, modules, unfinished)
        report = walk.report(stored)
        describe(unfinished, model, report)
        walk.try_again(guards)
    work.remove()
    return report


def check_changes(changes: Sequence[Change]) -> None:
    """Check that every change of a recipe has a form block by block.

    Raises:
        ValueError: One has none, or there is no change.
    """
    if not changes:
        raise ValueError("the recipe holds no change")
    for change in changes:
        if not change.by_block:
            change.in_block(nn.Module())  # which says why
            raise ValueError(f"{change.name()} cannot be applied block by block, from disk")


def in_parts(batches: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The batches in parts of at most `TOKENS` tokens, or of one example.

    Raises:
        ValueError: There is no batch, or one is not made of tensors.
    """
    parts = []
    for batch in batches:
        if not isinstance(batch, Mapping) or not all(isinstance(x, Tensor) for x in batch.values()):
            raise ValueError("block by block, from disk, a batch must be a mapping of tensors by argument")
        first = next(iter(batch.values()))
        size = max(1, TOKENS // max(1, first[0].numel()))
        parts += [{name: x[at : at + size] for name, x in batch.items()} for at in range(0, len(first), size)]
    if not parts:
        raise ValueError("the calibration data must hold at least one batch, got none")
    return parts


@dataclass(frozen=True)
class Part:
    """What was done to one part of a network, as JSON holds it.

    Attributes:
        description: Where it differs from the class because of each change, by name.
        order: Names of the changes in the order in which they were applied.
        units: Reports on its units, for each change of the recipe.
        sizes: Number of its parameters and of their bytes, after each change.
        seconds: Time that each change took.
        peak: Most bytes of memory that the process had held by the end of it.
    """

    description: dict[str, Any]
    order: list[str]
    units: list[list[dict[str, Any]]]
    sizes: list[list[int]]
    seconds: list[float]
    peak: int


@dataclass(frozen=True)
class Work:
    """Finished parts and hidden states on disk, until all is finished.

    Attributes:
        folder: Folder beside that of the result, with a digest of the recipe, the weights and the examples in its name.
    """

    folder: Path

    @classmethod
    def of(cls, out: Path, job: object, model: Path, batches: Sequence[Mapping[str, Tensor]]) -> Self:
        """The work of a recipe on these weights and examples.

        Raises:
            FileExistsError: There is other work for the same result.
        """
        digest = hashlib.sha256(json.dumps(job, default=str, sort_keys=True).encode())
        for path in sorted(model.glob("*.safetensors")):
            digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
        for batch in batches:
            for name, x in sorted(batch.items()):
                digest.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
                digest.update(x.contiguous().numpy().tobytes())
        stem = f"{out.name}.unfinished-"
        folder = out.with_name(stem + digest.hexdigest()[:8])
        others = [path for path in sorted(out.parent.glob(f"{stem}*")) if path != folder]
        if others:
            raise FileExistsError(
                f"{others[0]} holds unfinished work of another recipe, or on other weights or texts: "
                "give these to go on with it, or remove it"
            )
        return cls(folder)

    def states(self, number: int, *, original: bool = False) -> States:
        """The hidden states that a block reads: from the changed blocks before it, or the original ones."""
        return States(self.folder / f"{'original' if original else 'changed'}-{number}")

    def file(self, number: int | None) -> Path:
        """The tensors of a finished part."""
        return self.folder / f"{_name(number)}.safetensors"

    def part(self, number: int | None) -> Part | None:
        """What was done to a part; None where it is not finished."""
        path = self.folder / f"{_name(number)}.json"
        return Part(**json.loads(path.read_text())) if path.is_file() else None

    def keep(self, number: int | None, tensors: Mapping[str, Tensor], part: Part) -> None:
        """Write a finished part: its tensors, and then what was done, which makes it finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / "unfinished"
        save_file({key: x.contiguous() for key, x in tensors.items()}, unfinished, metadata={"format": "pt"})
        unfinished.replace(self.file(number))
        unfinished.write_text(json.dumps(asdict(part)))
        unfinished.replace(self.folder / f"{_name(number)}.json")

    def write(self, out: Path, numbers: Sequence[int | None], guards: Sequence[str]) -> None:
        """Put the tensors of all parts into a folder, with an index; files without a guard are not written again."""
        weight_map: dict[str, str] = {}
        size = 0
        for place_, number in enumerate(numbers, 1):
            name = f"model-{place_:05d}-of-{len(numbers):05d}.safetensors"
            tensors = dict(read_tensors(self.file(number)))
            weight_map |= dict.fromkeys(tensors, name)
            size += sum(x.numel() * x.element_size() for x in tensors.values())
            if any(guard in tensors for guard in guards):
                guarded = {key: x[None] if key in guards else x for key, x in tensors.items()}
                save_file(guarded, out / name, metadata={"format": "pt"})
            else:
                _link(self.file(number), out / name)
        (out / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}, indent=1))

    def remove(self) -> None:
        """Remove all of it from disk."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _name(number: int | None) -> str:
    return AROUND if number is None else f"block-{number}"


def _link(file: Path, path: Path) -> None:
    """The same file at another path: a copy where the file system has no links."""
    try:
        os.link(file, path)
    except OSError:
        shutil.copy(file, path)


class _Walk:
    """The way through the blocks of a network."""

    def __init__(
        self, blocks: Blocks, changes: list[Change], batches: list[dict[str, Tensor]], work: Work, seed: int,
        progress: Progress,
    ) -> None:  # fmt: skip
        self.blocks, self.changes, self.batches, self.work = blocks, changes, batches, work
        self.seed, self.progress = seed, progress
        self.masks = [_padding(batch) for batch in batches]
        self.arguments: list[list[Arguments]] = []
        self.stated = 0
        # Only the first change is made of the network as it was.
        self.compares = changes[0].reads_original

    @property
    def parts(self) -> list[Part]:
        """The finished parts, in order."""
        numbers = [*range(self.blocks.count), None]
        return [part for number in numbers if (part := self.work.part(number)) is not None]

    @property
    def complete(self) -> bool:
        """Whether all parts are finished."""
        return len(self.parts) == self.blocks.count + 1

    def check(self) -> str:
        """Check, before anything is written, that the recipe can be applied and that memory and disk suffice.

        Returns:
            One line that says how much of both it takes.
        """
        first = self.blocks.network(0, self.blocks.read(0))
        batch = min(self.batches, key=lambda batch: next(iter(batch.values())).numel())
        self.blocks.learn(batch, first)
        with self.blocks.embedding(self.blocks.read(None)) as embed:
            states, arguments = embed(batch)
        given = {"hidden_states": states, "arguments": arguments[0]}
        mask = _padding(batch)
        calibration = [given if mask is None else {**given, "attention_mask": mask}]
        before: list[type[Change]] = []
        for place_, change in enumerate(self.changes):
            if (own := change.in_block(first)) is not None:
                following = tuple(self.changes[place_ + 1 :])
                own.check(first, before, Given(calibration=calibration, part=True, following=following))
            elif change.around_blocks(self.blocks.model) is None:
                raise ValueError(f"{change.label} has nothing to change in the first block, nor around the blocks")
            before += change.traces
        width, itemsize = states.shape[-1], states.element_size()
        tokens = sum(next(iter(batch.values())).numel() for batch in self.batches)
        disk = 2 * (1 + self.compares) * tokens * width * itemsize + sum(map(self.blocks.bytes, self._numbers))
        self.stated = self._memory(first, width)
        available = shutil.disk_usage(self.work.folder.parent).free
        there = sum(path.stat().st_size for path in self.work.folder.rglob("*") if path.is_file())
        if available + there < disk:
            raise ValueError(
                f"{disk / 2**30:.1f} GiB of disk are needed beside the result, {available / 2**30:.1f} are free"
            )
        memory, room = self.stated - psutil.Process().memory_info().rss, free(torch.device("cpu"))
        if room < memory:
            raise ValueError(f"{memory / 2**30:.1f} GiB of memory are needed, {room / 2**30:.1f} are free")
        return (
            f"{self.blocks.count} blocks, one at a time: at most {self.stated / 2**30:.2f} GiB of memory, "
            f"{disk / 2**30:.2f} GiB of disk; hidden states in {str(states.dtype).removeprefix('torch.')}"
        )

    @property
    def _numbers(self) -> list[int | None]:
        return [*range(self.blocks.count), None]

    def _memory(self, block: OneBlock, width: int) -> int:
        """Most bytes that the process will hold: it, two blocks and a changed one, and what a solver holds of a layer.

        A solver holds sums over the inputs of a layer in float64, copies of its weight in float32 and float64, or the
        tensors that a pass computes for a batch, in float32.
        """
        layers = [(site.m, site.n) for site in sites(block, "linear", factors=True)]
        longest = max(next(iter(batch.values())).numel() for batch in self.batches)
        length = max(
            next(iter(batch.values())).shape[1] for batch in self.batches if next(iter(batch.values())).dim() > 1
        )
        heads = getattr(self.blocks.model.config.get_text_config(), "num_attention_heads", None) or 1
        passed = 8 * longest * (sum(m + n for m, n in layers) + 10 * width) + 16 * longest * length * heads
        squares = 8 * max(change.squares for change in self.changes) * max(n for _, n in layers) ** 2
        around = [parameter.numel() for name, parameter in self.blocks.model.named_parameters()
                  if not name.startswith(f"{self.blocks.path}.")]  # fmt: skip
        copies = 32 * max(max(m * n for m, n in layers), max(around, default=0))
        weights = max(3 * max(map(self.blocks.bytes, range(self.blocks.count))), 3 * self.blocks.bytes(None))
        return int(psutil.Process().memory_info().rss + weights + max(passed, copies) + squares + 2 * STATISTICS)

    def run(self, blocks: int) -> None:
        """Change the parts that are not finished, up to so many blocks."""
        todo = [number for number in range(blocks) if self.work.part(number) is None]
        last = self.work.part(None) is None and blocks == self.blocks.count
        if not todo and not last:
            return
        self._embed()
        for number in range(todo[0] if todo else self.blocks.count):
            self._drop(number)
        with ThreadPoolExecutor(1) as reader:
            ahead: Future[dict[str, Tensor]] | None = reader.submit(self.blocks.read, todo[0]) if todo else None
            for place_, number in enumerate(todo):
                assert ahead is not None
                tensors = ahead.result()
                following = todo[place_ + 1] if place_ + 1 < len(todo) else None
                ahead = None if following is None else reader.submit(self.blocks.read, following)
                self._block(number, tensors)
                self._drop(number)
        if last:
            self._around()
            self._drop(self.blocks.count)

    def _drop(self, number: int) -> None:
        """Remove the hidden states that a finished block has read."""
        for original in (False, True):
            self.work.states(number, original=original).remove()

    def _embed(self) -> None:
        """Run what stands before the blocks: what blocks are called with, and what the first one reads."""
        states, begun = self.work.states(0), self.work.part(0) is not None
        with self.blocks.embedding(self.blocks.read(None)) as embed:
            for number, batch in enumerate(self.batches):
                hidden, arguments = embed(batch)
                self.arguments.append(arguments)
                if not (begun or states.has(number)):
                    states.write(number, hidden)
                self.progress("embedding", (number + 1) / len(self.batches))

    def _inputs(self, number: int, *, original: bool = False) -> Inputs:
        states = self.work.states(number, original=original and number > 0)
        return Inputs(states, [by_block[number] for by_block in self.arguments], self.masks)

    def _pass(self, network: nn.Module, inputs: Inputs, states: States) -> None:
        """Write what a block gives."""
        with evaluating(network), torch.no_grad():
            for number in range(len(inputs)):
                states.write(number, call(network, inputs[number]))

    def _block(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        network, name = self.blocks.network(number, tensors), f"block {number + 1} of {self.blocks.count}"
        inputs, original = self._inputs(number), None
        if self.compares:
            original = self._inputs(number, original=True)
            self._pass(network, original, self.work.states(number + 1, original=True))
        part = self._changed(network, inputs, original, lambda change: change.in_block(network), name)
        self._pass(network, inputs, self.work.states(number + 1))
        self.work.keep(number, network.state_dict(), part)

    def _around(self) -> None:
        """Change embeddings and output layers, which read what the last block gives."""
        changed = self.work.states(self.blocks.count)
        inputs = [(batch, changed, number) for number, batch in enumerate(self.batches)]
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
            self.work.keep(None, tensors, part)

    def _changed(
        self, network: nn.Module, calibration: Sequence[Batch], original: Sequence[Batch] | None,
        fitted: Callable[[Change], Change | None], name: str,
    ) -> Part:  # fmt: skip
        """Apply the changes of the recipe to a part."""
        units: list[list[dict[str, Any]]] = []
        sizes, seconds = [], []
        given = Given(
            calibration=calibration, original=original, part=True, memory=STATISTICS, seed=self.seed,
            progress=lambda done, share: self.progress(f"{name}, {done}", share),
        )  # fmt: skip
        for place_, change in enumerate(self.changes):
            began = perf_counter()
            own = fitted(change)
            rows: Sequence[UnitReport] = ()
            if own is not None:
                following = tuple(self.changes[place_ + 1 :])
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
        parts = self.parts
        blocks = sum(self.work.part(number) is not None for number in range(self.blocks.count))
        peak = max((part.peak for part in parts), default=_peak())
        steps = []
        for place_, change in enumerate(self.changes):
            units = [
                UnitReport(**unit | {"tied": tuple(unit["tied"])}) for part in parts for unit in part.units[place_]
            ]
            before, after = (sum(getattr(unit, name) for unit in units) for name in ("before", "after"))
            summary = (
                f"{blocks} of {self.blocks.count} blocks, one at a time, {len(units)} parts of them and around them, "
                f"{before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB; {peak / 2**30:.2f} GiB of memory, "
                f"{self.stated / 2**30:.2f} stated before"
            )
            entries, size = (sum(part.sizes[place_][at] for part in parts) for at in range(2))
            seconds = sum(part.seconds[place_] for part in parts)
            steps.append(Step(Report(as_dict(change), summary, units), entries, size, seconds))
        before = sum(tensor.entries for tensor in stored.values()), sum(tensor.bytes for tensor in stored.values())
        return CompressionReport(steps, *before)

    @torch.no_grad()
    def try_again(self, guards: Sequence[str]) -> None:
        """Run the written network on a batch, one block at a time.

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
            states = call(network, {"hidden_states": states, "arguments": arguments[number]})
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
