"""A recipe with calibration data from disk to disk, one block of the network, or a few, in memory at a time.

The texts are embedded once. Then, block after block: its weights are read, the changes of the recipe are applied to it
as to a network of its own, with the hidden states that the changed blocks before it give; the changed block gives those
of the next one and is written. Hidden states and finished blocks lie in a folder beside the result, so that the same
command goes on where it was stopped, to the same bits. Embeddings and output layers come last, in the same way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from greenformers.changes import Change, kinds
from greenformers.changes._options import as_dict
from greenformers.changes._report import CompressionReport
from greenformers.checkpoint.description import Description
from greenformers.checkpoint.guard import guards_of
from greenformers.checkpoint.place import place
from greenformers.checkpoint.pretrained import check_tokenizer, tokenizer_of
from greenformers.checkpoint.save import building, check_place, describe
from greenformers.checkpoint.structure import ORDER, structure
from greenformers.compress.block_walk import Progress, Walk, in_parts
from greenformers.compress.block_work import Work
from greenformers.compress.blocks import Blocks
from greenformers.compress.from_disk import carry, check_written, skeleton, transformer_of
from greenformers.compress.job import Job
from greenformers.compress.reading import check_parts, read_parts
from greenformers.compress.wide_products import WideProducts
from greenformers.data._reader import Reader
from greenformers.data._tasks import KINDS
from greenformers.model.positions import reach
from greenformers.train.processes import first_process, wait


def compress_block_by_block(
    folder: str | Path,
    out: str | Path,
    changes: Sequence[Change],
    batches: Sequence[Mapping[str, Tensor]],
    *,
    at_once: int = 1,
    seed: int = 0,
    progress: Progress = lambda *_: None,
    told: Callable[[str], None] = lambda _: None,
) -> CompressionReport:
    """Change the checkpoint in a folder into another, with few blocks of it in memory at a time.

    Args:
        folder: Folder of a model of transformers with weights in safetensors.
        out: Folder for the changed model; `greenformers.load` and `from_pretrained` read it.
        changes: The recipe; all of its changes must have a form block by block.
        batches: Examples to calibrate with, as keyword arguments of the network; masks tell what is padding.
        at_once: Number of consecutive blocks that are in memory, and changed as one network: what looks at outputs
            looks at those of the last one, and healing learns what all of them give together.
        seed: Seed of random numbers.
        progress: Function that is called as work goes on.
        told: Function that is told, before work begins, how much memory and disk it takes.

    Of several processes each runs blocks on its share of the batches, and the first writes.

    Returns:
        The report of the recipe.

    Raises:
        ValueError: Files are damaged, foreign or do not fit the configuration; the network is not made of one stack of
            blocks; a change has no form block by block; `at_once` is out of range; or memory or disk is too
            small.
        FileExistsError: Beside `out` lies the unfinished work of another recipe or of other examples.
        OSError: A file cannot be read or written.
    """
    folder, out = Path(folder), Path(out)
    check_changes(changes)
    check_place(out)
    folder, modules = transformer_of(folder)
    model, stored = skeleton(folder, buffers=True)
    whole = Blocks(model, stored, at_once)
    batches = in_parts(batches)
    job = [str(folder.resolve()), [as_dict(change) for change in changes], at_once, seed]
    work = Work.of(out, job, folder, batches)
    walk = Walk(whole, list(changes), batches, work, seed, progress)
    with _without_cache(model.config), WideProducts():
        told(walk.check())
        wait()  # what others write would change under those that still check
        walk.run()
    report = walk.report(stored)
    wait()
    if first_process():
        with building(out) as unfinished:
            _finish(walk, unfinished, [name for name in guards_of(model) if name in stored])
            carry(folder, modules, unfinished)
            describe(unfinished, model, report)
            with _without_cache(model.config), WideProducts():
                walk.try_again()
        work.remove()
    wait()
    return report


@contextmanager
def _without_cache(config: Any) -> Iterator[None]:
    """A `with` block in which a network makes no cache, which would be a part of what its blocks are called with."""
    before = getattr(config, "use_cache", None)
    if before is not None:
        config.use_cache = False
    try:
        yield
    finally:
        if before is not None:
            config.use_cache = before


def _finish(walk: Walk, out: Path, guards: Sequence[str]) -> None:
    """Write the tensors of all parts, and the configuration that describes the network that they are of.

    Raises:
        ValueError: They are not those of that network, or no weight is another than before.
    """
    model: Any = walk.blocks.model
    walk.work.write(out, [*range(walk.blocks.count), None], guards)
    order = [name for change in walk.changes for name in change.described_by()]
    for part in walk.parts():
        place(model, Description(part.description, part.order))
        order += part.order
    setattr(model, ORDER, list(dict.fromkeys(order)))
    described = structure(model)
    if described.empty and all(change.factorises for change in walk.changes):
        walk.work.remove()  # of which nothing can come
        raise ValueError("no weight became low rank: within the budget all of them stay dense, in every block")
    described.guards = list(guards)
    model.config.quantization_config = described
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(out)
    check_written(out, type(model))


def calibration_of(folder: str | Path, changes: Sequence[Change], job: Job) -> Sequence[Mapping[str, Tensor]]:
    """The batches to calibrate with of the command's texts: the same as for a model in memory.

    Raises:
        ValueError: No change needs texts, or the network or its tokenizer does not read them.
        OSError: A file cannot be read.
    """
    check_changes(changes)
    looking = [change for change in changes if "calibration" in change.uses]
    if not looking and any(change.trains for change in changes):  # blocks learn from what calibrates
        looking = [next(kind() for kind in kinds() if kind.share is not None)]
    check_parts(looking or changes, job)
    if not looking:
        raise ValueError("texts are of no use: no change of the recipe looks at them")
    if job.texts is not None and job.calibrate is not None:
        raise ValueError("--texts is of no use beside --calibrate: from disk nothing is judged")
    place, modules = transformer_of(Path(folder))
    model, _ = skeleton(place)
    tokenizer = tokenizer_of(str(place))
    if KINDS.get(model.main_input_name) != "text":
        raise ValueError(f"{type(model).__name__} reads no texts: block by block, from disk, a network must")
    check_tokenizer(tokenizer, model, str(folder))
    longest = reach(model)
    length, _ = job.at(longest, None if modules is None else modules.length)
    if longest is not None and length > longest:
        raise ValueError(f"length must be at most {longest}, the longest input; got {length}")
    reader = Reader.of(model, tokenizer, length)
    return reader.batches(read_parts(looking, job, reader)["calibration"])


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
