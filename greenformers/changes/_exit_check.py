"""Which networks can have early exits, found out before any work."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.changes._distillation import Distillation
from greenformers.changes._exit_modules import OF_CLASSIFIERS, OF_ENCODERS, Rule
from greenformers.changes._exit_passes import Scripted, Seen
from greenformers.changes._exit_threshold import CONFIDENCE, enough
from greenformers.changes._exit_training import example_batch, parted
from greenformers.changes._exits import EarlyExits, put, remove
from greenformers.changes._stacks import stacks
from greenformers.data._rows import Rows
from greenformers.data._tasks import kind_of_input, task_of
from greenformers.measure.quality import evaluating
from greenformers.solve.coupled import exact
from greenformers.train.schedule import Schedule

TASKS = ("encoder", "masked_lm", "classifier")

SIZES, LENGTH = (2, 3), 7
"""Numbers of texts by which it is found out what a layer is given of all texts alike, and their tokens."""


@dataclass(frozen=True)
class Fitting:
    """What exits of a network need to be.

    Attributes:
        path: Path of the stack.
        after: Numbers of the layers that exits stand after.
        width: Width of the states.
        classes: Number of classes; None for an encoder.
        head: Path of the module whose output the logits are; None for an encoder.
        by: Name of the score.
        shared: Names of arguments of layers that the texts of a batch share.
    """

    path: str
    after: Sequence[int]
    width: int
    classes: int | None
    head: str | None
    by: str
    shared: Sequence[str]

    def exits(self, patience: int, seed: int) -> EarlyExits:
        """New exits, by which nobody leaves yet."""
        rule = Rule(self.by, 1.0, patience)
        exits = EarlyExits(self.after, self.width, self.classes, rule, self.head, self.shared)
        source = torch.Generator().manual_seed(seed)
        for module in exits.by_layer.values():
            module.draw(source)
        return exits


def fitting(model: nn.Module, after: Sequence[int] | None, by: str | None) -> Fitting:
    """What exits of a network need to be; the network is run, and left as it is.

    Raises:
        ValueError: It can have no exits, or not these.
    """
    name = type(model).__name__
    by_path = stacks(model)
    assert isinstance(model, PreTrainedModel)
    task = task_of(model)
    if task not in TASKS or kind_of_input(model) != "text":
        raise ValueError(f"early exits are of encoders and classifiers of texts, and {name} is none")
    if len(by_path) > 1:
        raise ValueError(f"early exits are of one stack of layers, and {name} has {', '.join(by_path)}")
    (path, stack), classes = next(iter(by_path.items())), None
    if task == "classifier":
        classes = _classes(model)
    last = len(stack) - 1
    if after is not None and not all(0 <= at < last for at in after):
        raise ValueError(f"exits must stand after layers in 0..{last - 1}, got {', '.join(map(str, after))}")
    allowed = OF_ENCODERS if classes is None else OF_CLASSIFIERS
    if by is not None and by not in allowed:
        raise ValueError(f"exits of a {name} go by {' or '.join(allowed)}, got {by!r}")
    (_, fewer, _), (out, seen, head) = (_run(model, stack, size) for size in SIZES)
    if getattr(out, "past_key_values", None) is not None:
        raise ValueError(
            f"early exits are of encoders, and the layers of {name} keep keys and values as a decoder's do"
        )
    passed = [seen.entered, *seen.states]
    if len(seen.states) != len(stack) or not _alike(passed):
        raise ValueError(f"the layers of {path} do not pass on states of one shape, one after the other: none can stop")
    if classes is not None and (head is None or out.logits.shape != (SIZES[-1], classes)):
        raise ValueError(
            f"the logits of {name} are the output of no module of it, whose place those of exits could take"
        )
    shared = [key for key, size in fewer.sizes.items() if size == seen.sizes.get(key) and size > 1]
    return Fitting(
        path, list(range(last) if after is None else after), seen.states[0].shape[-1], classes,
        head if classes is not None else None,
        by or allowed[0], shared,
    )  # fmt: skip


def _alike(states: Sequence[Any]) -> bool:
    """Whether states are tensors (B, N, d) of one shape."""
    tensors = all(isinstance(x, Tensor) and x.dim() == 3 for x in states)
    return tensors and len({x.shape for x in states}) == 1


def _classes(model: PreTrainedModel) -> int:
    config: Any = model.config
    kind = getattr(config, "problem_type", None)
    if config.num_labels < 2 or kind not in (None, "single_label_classification"):
        raise ValueError(
            f"early exits of a classifier tell two classes or more apart, one a text; this {type(model).__name__} has "
            f"{config.num_labels} labels{f' ({kind})' if kind else ''}"
        )
    return int(config.num_labels)


def _run(model: PreTrainedModel, stack: nn.ModuleList, size: int) -> tuple[Any, Seen, str | None]:
    """The output for a batch of this size, what the layers saw, and the path of the module that gave the logits."""
    seen, given = Seen(), _tokens(model, size)
    by: dict[int, str] = {}

    def noted(path: str, output: Any) -> None:
        if isinstance(output, Tensor):
            by[id(output)] = path
            outputs.append(output)  # held, so that no other tensor gets its id

    outputs: list[Tensor] = []
    handles = [
        hook
        for layer in stack
        for hook in (
            layer.register_forward_pre_hook(lambda _, args, options: seen.note(args, options), with_kwargs=True),
            layer.register_forward_hook(lambda _, __, output: seen.note_output(output)),
        )
    ]
    inside = {id(module) for module in stack.modules()}
    for path, module in model.named_modules():
        if path and id(module) not in inside:
            handles.append(module.register_forward_hook(lambda _, __, output, path=path: noted(path, output)))
    try:
        with evaluating(model), torch.no_grad():
            out = model(**given)
    except Exception as error:  # whatever networks raise that need more than these
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"{type(model).__name__} cannot be run on {', '.join(given)} alone: {why}") from error
    finally:
        for handle in handles:
            handle.remove()
    return out, seen, by.get(id(getattr(out, "logits", None)))


def _tokens(model: PreTrainedModel, size: int) -> dict[str, Tensor]:
    """Token ids and a mask, by which the first text is shorter, so that there is a mask for layers to be given."""
    config: Any = model.config
    ids = torch.arange(LENGTH).remainder(config.get_text_config().vocab_size).repeat(size, 1).to(model.device)
    mask = torch.ones_like(ids)
    mask[0, LENGTH - 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def check_examples(rows: Rows, lose: float, schedule: Schedule) -> None:
    """Check that there are texts for a batch, and enough beside them to show that no more than a share is lost.

    Raises:
        ValueError: There are not.
    """
    learnt, held = parted(rows)
    Distillation(learnt, schedule)
    least = enough(lose)
    if len(held) < least:
        raise ValueError(
            f"to show with {CONFIDENCE:.0%} confidence that less than {lose:g} is lost takes {least} texts held out, "
            f"and of {len(rows)} there are {len(held)}: give more texts, or allow more"
        )


@torch.no_grad()
def behaves(model: PreTrainedModel, exits: EarlyExits, rows: Rows) -> None:
    """Check that texts of a network with exits can leave it one by one: others and they are as they would be alone.

    Raises:
        ValueError: They are not.
    """
    batch = {name: x.to(model.device) for name, x in example_batch(rows, 4).items()}
    count = len(batch["input_ids"])
    leave = tuple(range(0, count, 2))
    with evaluating(model):
        whole, some = _outputs(model, exits, batch, ()), _outputs(model, exits, batch, leave)
        alone = _outputs(model, exits, {name: x[:1] for name, x in batch.items()}, (0,))
    mask = batch["attention_mask"].bool() if "attention_mask" in batch else None
    for at in range(count):
        expected = alone[0] if at == 0 else whole[at]
        x, y = (z if mask is None or z.shape[0] != mask.shape[1] else z[mask[at]] for z in (some[at], expected))
        if (at == 0 or at not in leave) and bool((x - y).abs().max() > exact(model) * y.abs().max()):
            raise ValueError(
                f"{type(model).__name__} gives other outputs to a text beside others that have left its layers early: "
                "it can have no early exits"
            )


def _outputs(model: Any, exits: EarlyExits, batch: dict[str, Tensor], leave: tuple[int, ...]) -> Tensor:
    way = exits.early(batch["attention_mask"].bool() if "attention_mask" in batch else None, Scripted)
    assert isinstance(way, Scripted)
    way.named = leave
    with exits.going(way):
        out = model(**batch)
    output: Tensor = out.logits if "logits" in out else out.last_hidden_state
    return output.float()


def tried(model: PreTrainedModel, fit: Fitting, rows: Rows) -> None:
    """Check how exits behave, by some that have learnt nothing; the network is left as it is.

    Raises:
        ValueError: See `put` and `behaves`.
    """
    exits = fit.exits(1, 0)
    put(model, fit.path, exits)
    try:
        behaves(model, exits, rows)
    finally:
        remove(model, fit.path)
