"""Application of a recipe: all changes are checked before any work, then applied one by one."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.changes import Change, Given, kinds
from greenformers.changes._recipe import read_recipe
from greenformers.changes._report import CompressionReport, Step
from greenformers.checkpoint.pooling import is_sentence_transformer, know, transformer_in
from greenformers.checkpoint.structure import changes_of, mark
from greenformers.compress.job import USUAL
from greenformers.compress.parts import parts_of
from greenformers.data._pooling import pooling_of
from greenformers.data._reader import Reader
from greenformers.data._rows import Batches, Rows
from greenformers.data._texts import Texts
from greenformers.measure.parameters import bytes_of, parameters
from greenformers.model.positions import reach
from greenformers.solve.share import Share, check_share
from greenformers.solve.walk import kind_of

SIZE = 16
"""Examples in a batch to calibrate with."""

After = Callable[[int, nn.Module, CompressionReport], None]
"""Function that is called after each change with its number, the network, and the report so far."""


def changes_in(recipe: float | str | Path | Change | Sequence[Change]) -> list[Change]:
    """The changes of a recipe: a number stands for low rank with this share, a path for the changes of its file.

    Raises:
        ValueError: The recipe is empty, or holds something that is not a change.
        OSError: The file cannot be read.
    """
    if isinstance(recipe, str | Path):
        return read_recipe(Path(recipe))
    if isinstance(recipe, int | float):
        kind = next(kind for kind in kinds() if kind.share is not None)
        return [kind(**{str(kind.share): recipe})]
    changes = [recipe] if isinstance(recipe, Change) else list(recipe)
    if not changes:
        raise ValueError("the recipe holds no change")
    for change in changes:
        if not isinstance(change, Change):
            raise ValueError(f"a recipe is a list of changes such as LowRank(keep=0.5), got {change!r} in it")
    return changes


def compressed(
    model: nn.Module,
    recipe: float | str | Path | Change | Sequence[Change],
    *,
    texts: Sequence[str] | Sequence[tuple[str, str]] | None,
    tokenizer: PreTrainedTokenizerBase | None,
    examples: Sequence[Mapping[str, Tensor]] | None,
    calibration: Iterable[Any] | None,
    teacher: nn.Module | None,
    length: int | None,
    **given: Any,
) -> CompressionReport:
    """See `greenformers.compress.compress`."""
    changes = changes_in(recipe)
    if is_sentence_transformer(model):
        tokenizer = tokenizer or model.tokenizer  # type: ignore[assignment]
        model = transformer_in(model)
    else:
        know(model)
    longest = reach(model) if isinstance(model, PreTrainedModel) else None
    if length is not None and length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    if length is not None and longest is not None and length > longest:
        raise ValueError(f"length must be at most {longest}, the longest input of the model, got {length}")
    length = length or length_of(model)
    if isinstance(calibration, Mapping | Tensor):
        raise ValueError(f"calibration must be batches, got a {type(calibration).__name__}: put one batch in a list")
    if isinstance(texts, str):
        raise ValueError("texts must be a list of texts, got a single one")
    if texts is not None and tokenizer is None:
        raise ValueError("texts need a tokenizer")
    if texts is not None and examples is not None:
        raise ValueError("give either texts or examples: texts are read with the tokenizer, examples as they are")
    batched: Any = None if calibration is None else list(calibration)
    used = {need for change in changes for need in change.uses}
    purposes = [need for need in ("calibration", "training") if need in used and not (batched and need != "training")]
    training = None
    if texts is not None or examples is not None:
        if not isinstance(model, PreTrainedModel):
            raise ValueError(
                f"{type(model).__name__} is not a model of transformers: give batches as calibration, in place of "
                "texts or examples"
            )
        # What no change uses is not read.
        parts = _parts(model, texts, tokenizer, examples, purposes, length, given["seed"]) if purposes else {}
        batched = batched or parts.get("calibration")
        training = parts.get("training")
    if "teacher" in used and teacher is None:
        teacher = copy.deepcopy(model)
    mask = getattr(tokenizer, "mask_token_id", None)
    about = Given(calibration=batched, training=training, teacher=teacher, mask_token=mask, **given)
    check(model, changes, about)
    return apply(model, changes, about)


def _parts(
    model: PreTrainedModel, texts: Sequence[Any] | None, tokenizer: PreTrainedTokenizerBase | None,
    examples: Sequence[Mapping[str, Tensor]] | None, purposes: Sequence[str], length: int, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Batches to calibrate with and rows to learn from."""
    if texts is None:
        assert examples is not None
        config: Any = model.config
        filler = {"input_ids": getattr(config.get_text_config(), "pad_token_id", None) or 0}
        masked = [_masked(model, row) for row in examples]
        # Only what is of one shape is brought together to calibrate with: a number for each.
        shapes = [str({name: tuple(x.shape) for name, x in row.items()}) for row in masked]
        numbers = {shape: number for number, shape in enumerate(sorted(set(shapes)))}
        parts = parts_of(range(len(masked)), purposes, seed)
        rows = {
            name: Rows([masked[at] for at in places], filler=filler, lengths=[numbers[shapes[at]] for at in places])
            for name, places in parts.items()
        }
        return {name: part if name == "training" else Batches(part, SIZE, exact=True) for name, part in rows.items()}
    reader = Reader.of(model, tokenizer, length)
    segments = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    corpus = Texts("the texts", segments, translated=reader.task == "seq2seq")
    if reader.task == "seq2seq" and any(len(pair) != 2 for pair in segments):
        raise ValueError("the texts of an encoder-decoder must be pairs of a source and a target")
    return {
        name: reader.rows(corpus.at(places)) if name == "training" else reader.batches(corpus.at(places))
        for name, places in parts_of(range(len(corpus)), purposes, seed).items()
    }


def _masked(model: PreTrainedModel, row: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An example with the masks by which what pads it in a batch is told, as far as the model takes them."""
    masks = {"input_ids": "attention_mask", "labels": "decoder_attention_mask"}
    taken = inspect.signature(model.forward).parameters
    added = {
        mask: torch.ones_like(row[name])
        for name, mask in masks.items()
        if name in row and row[name].dim() == 1 and mask in taken and mask not in row
    }
    return {**row, **added}


def length_of(model: nn.Module) -> int:
    """The default length of texts in tokens: that of the model's pooling, or `USUAL`, within the model's reach."""
    longest = pooling_of(model).length or USUAL
    return min(longest, reach(model) or longest) if isinstance(model, PreTrainedModel) else longest


def check(model: nn.Module, changes: Sequence[Change], given: Given) -> None:
    """Check that every change of a recipe can be applied to a network, before the first one is.

    Raises:
        ValueError: A change cannot be applied, or the network cannot be changed in place.
    """
    if kind_of(model):
        raise ValueError(f"a single {type(model).__name__} cannot be replaced in place: put it into an nn.Sequential")
    for path, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(f"{path} has no size yet, of a layer that takes it from its first input: run it once")
    if given.teacher_cache is not None and not any("teacher" in change.needs for change in changes):
        raise ValueError(
            "teacher_cache keeps what a teacher gives, and no change of the recipe learns from one: leave it out"
        )
    if given.together and given.calibration and any(change.shares for change in changes):
        check_share(len(given.calibration))
    before = changes_of(model)
    for number, change in enumerate(changes):
        earlier = [*before, *(kind for past in changes[:number] for kind in past.traces)]
        change.check(model, earlier, replace(given, following=tuple(changes[number + 1 :])))


def apply(
    model: nn.Module,
    changes: Sequence[Change],
    given: Given,
    *,
    done: CompressionReport | None = None,
    before: Callable[[int], object] = lambda _: None,
    after: After = lambda *_: None,
) -> CompressionReport:
    """Apply the changes of a recipe that has been checked.

    Args:
        model: The network, changed in place.
        changes: All changes of the recipe.
        given: Data and settings that they may use.
        done: Report of changes that were applied before, where a recipe is continued.
        before: Function that is called with the number of a change in which other processes take part, before it is
            applied: of one that trains, or that shares what it calibrates with.
        after: Function that is called after each change.

    Returns:
        The report of all changes.
    """
    report = done or CompressionReport([], parameters(model), bytes_of(model))
    for number in range(len(report.steps), len(changes)):
        change, began = changes[number], perf_counter()
        if change.trains or (given.together and change.shares):
            before(number)
        single = change.apply(model, given_to(number, changes, given))
        mark(model, [change.name()])
        step = Step(single, parameters(model), bytes_of(model), perf_counter() - began)
        report = replace(report, steps=[*report.steps, step])
        after(number, model, report)
    return report


def given_to(number: int, changes: Sequence[Change], given: Given) -> Given:
    """Data and settings of one change of a recipe, which knows what follows and has a folder of its own.

    Where processes apply it together, it gets the share of this one.
    """
    folder = None if given.folder is None else given.folder / f"training-{number}"
    measured = None if given.measured is None else given.measured.after(changes[:number])
    if given.together and changes[number].shares and given.calibration:
        given = replace(given, calibration=Share(given.calibration), example=given.batch)
    return replace(given, following=tuple(changes[number + 1 :]), folder=folder, measured=measured)
