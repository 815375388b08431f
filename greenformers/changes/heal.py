"""Healing: distillation of a teacher into the changed network on unlabelled examples. Hinton 2015, arXiv:1503.02531.

The losses are those of `greenformers.changes._student`.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from greenformers.changes._contract import Change, Given, Need, option
from greenformers.changes._report import Report, UnitReport

if TYPE_CHECKING:
    from torch import nn

    from greenformers.changes._distillation import Distillation
    from greenformers.train.schedule import Schedule


ANEW = 1e-3
"""Learning rate of a student that is built anew, which has farther to go than a network of which parts are changed."""


PRECISIONS = ("fp32", "bf16")

OFTEN, JUDGED = 10, 50
"""Least steps between checkpoints and, where nothing depends on them, between evaluations, each of which takes as long
as a few steps."""


@dataclass(frozen=True)
class Heal(Change):
    """Steps of distillation: the network learns from the original, or from another teacher."""

    steps: int = option(300, "Training steps, with linear warm-up and a cosine decay to 0.", "--heal")
    batch_size: int = option(64, "Examples in each step.", "--heal-batch")
    learning_rate: float = option(5e-4, "Highest learning rate.", "--heal-rate")
    muon_rate: float | None = option(
        None, "Highest learning rate of Muon, which then trains the matrices inside the layers, and AdamW the rest; by "
        "default AdamW trains all.", "--heal-muon-rate",
    )  # fmt: skip
    patience: int | None = option(
        None, "Stop after this many evaluations, of ten in all, without a lower loss.", "--heal-patience"
    )
    temperature: float = option(2.0, "Temperature T by which logits are divided.")
    weights: dict[str, Any] = option(
        {},
        "Weights of the parts of the loss, by name: logits, hidden, embeddings, similarities, attention, relations.",
        "--heal-weight",
    )
    layer_map: tuple[int, ...] | None = option(
        None, "The teacher's layer that each of the student's learns from, the embedding's (0) first, -1 for none; by "
        "default the one at the same share of the depth.", "--heal-layer-map",
    )  # fmt: skip
    samples: int | None = option(
        None,
        "Learn from so many texts that the teacher itself writes, in place of the texts: targets of their sources, or "
        "of a language model what follows their beginnings.",
        "--heal-samples",
    )
    augment: float | None = option(
        None,
        "Share of the tokens of texts that each step replaces by others that a masked language model as teacher finds "
        "likely there, or that are near in the teacher's embedding.",
        "--heal-augment",
    )
    aware: bool = option(
        False, "Round weights and inputs in training as later changes of the recipe will round them.", "--heal-aware"
    )
    noise: float | None = option(
        None, "With aware, the share of the weights that a step rounds, drawn at random (Quant-Noise); by default all.",
        "--heal-noise",
    )  # fmt: skip
    movement: float | None = option(
        None, "Share of the weights of linear layers to keep, in (0, 1): movement pruning, step by step.",
        "--heal-movement",
    )  # fmt: skip
    adapters: int | None = option(
        None,
        "After bits, learn nothing but products of two narrow weights of this rank, beside linear layers of few bits, "
        "where two dense networks fit in memory and the gradients of one do not.",
    )  # fmt: skip
    shard: bool = option(False, "Spread weights and optimiser state over several processes (FSDP).", "--heal-shard")
    precision: str = option(
        "fp32", "Precision of the products of matrices of both networks, fp32 or bf16; weights stay float32.",
        "--heal-precision",
    )  # fmt: skip

    order: ClassVar[int] = 80
    trains: ClassVar[bool] = True
    by_block: ClassVar[bool] = True
    built_by_the_class: ClassVar[bool] = True
    reads_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be above 0 and finite, got {self.learning_rate}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be above 0 and finite, got {self.temperature}")
        if self.samples is not None and self.samples < 2:
            raise ValueError(f"samples must be at least 2, got {self.samples}")
        if self.augment is not None and not 0 < self.augment < 1:
            raise ValueError(f"augment must be a share in (0, 1), got {self.augment}")
        if self.noise is not None and not 0 < self.noise < 1:
            raise ValueError(f"noise must be a share in (0, 1), got {self.noise}")
        if self.noise is not None and not self.aware:
            raise ValueError("noise is of aware healing: set aware too")
        if self.movement is not None:
            if not 0 < self.movement < 1:
                raise ValueError(f"movement must be a share in (0, 1), got {self.movement}")
            if self.aware or self.patience is not None:
                other = "aware" if self.aware else "patience"
                raise ValueError(f"movement and {other} exclude each other: heal once with each")
        if self.muon_rate is not None and not 0 < self.muon_rate < math.inf:
            raise ValueError(f"muon_rate must be above 0 and finite, got {self.muon_rate}")
        if self.muon_rate is not None and (self.movement is not None or self.shard):
            other = "shard" if self.shard else "movement"
            raise ValueError(f"muon_rate and {other} exclude each other: Muon makes one update of a whole matrix")
        if self.shard and (self.aware or self.movement is not None):
            other = "aware" if self.aware else "movement"
            raise ValueError(f"shard and {other} exclude each other: {other} changes weights that are whole")
        if self.adapters is not None:
            if self.adapters < 1:
                raise ValueError(f"adapters must be a rank of at least 1, got {self.adapters}")
            for other in ("aware", "movement", "muon_rate", "shard"):
                if getattr(self, other) not in (None, False):
                    raise ValueError(f"adapters and {other} exclude each other: weights beside adapters stay")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r}")
        for name, weight in self.weights.items():
            from greenformers.changes._student import PARTS

            if name not in PARTS:
                raise ValueError(f"weights must be of {', '.join(PARTS)}; got {name!r}")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight >= 0:
                raise ValueError(f"weights must be at least 0, got {name} {weight}")

    @property
    def label(self) -> str:
        """The number of steps, as in "healed 300" or "adapters 16, 300 steps"."""
        return f"healed {self.steps}" if self.adapters is None else f"adapters {self.adapters}, {self.steps} steps"

    @property
    def needs(self) -> frozenset[Need]:
        """Examples to learn from, and a teacher."""
        return frozenset({"training", "teacher"})

    @property
    def traces(self) -> "Sequence[type[Change]]":
        """With `movement`, also those of zeros, which stay."""
        from greenformers.changes.sparse import Sparse

        return (Heal,) if self.movement is None else (Heal, Sparse)

    @property
    def same_costs(self) -> bool:
        """Whether nothing is added."""
        return self.adapters is None

    def check_order(self, before: "Sequence[type[Change]]") -> None:
        """Check also that adapters stand beside weights of few bits."""
        from greenformers.changes.bits import Bits

        if self.muon_rate is not None and (sparsifying := next((kind for kind in before if kind.sparsifies), None)):
            raise ValueError(
                f"muon_rate cannot follow {sparsifying.name()}: Muon makes one update of a whole matrix, zeros and all"
            )
        if self.adapters is None:
            super().check_order(before)
            return
        rounding = [change for change in before if change.freezes]
        if other := next((change for change in rounding if change is not Bits), None):
            raise ValueError(f"adapters are learned beside weights of few bits, not those of {other.name()}")
        if not rounding:
            raise ValueError("adapters are learned beside weights of few bits: put bits before heal")
        super().check_order([change for change in before if not change.freezes])

    def check(self, model: "nn.Module", before: "Sequence[type[Change]]", given: Given) -> None:
        """Check also that there are examples for a batch, a fitting teacher, and with `aware` a change that rounds.

        With `movement` there must be linear layers without zeros.
        """
        from greenformers.changes._teacher_check import check_teacher
        from greenformers.solve.sparse_sites import prunable
        from greenformers.train.fit import per_process
        from greenformers.train.processes import alone
        from greenformers.train.shard import is_sharded

        if given.part:
            self.check_order(before)
            return
        super().check(model, before, given)
        if self.adapters is None and not any(weight.requires_grad for weight in model.parameters()):
            raise ValueError("healing needs weights that learn, and all are frozen: call requires_grad_() of the model")
        per_process(self.schedule(given.seed))
        if self.shard and alone():
            raise ValueError("shard needs several processes: start the command with torchrun")
        if is_sharded(self.shard):
            self.but(shard=True)  # refuses what cannot be sharded
        if self.movement is not None:
            sparsifying = next((change for change in before if change.sparsifies), None)
            if sparsifying is not None:
                raise ValueError(f"movement cannot follow {sparsifying.name()}, whose zeros stay: use one of the two")
            prunable(model)
        examples = self._examples(model, given)
        self._rounding(model, given)
        if self.augment is not None:
            if "input_ids" not in examples.all[0]:
                raise ValueError("augment is of tokens of texts, and the examples hold none")
            if given.teacher_cache is not None:
                raise ValueError(
                    "augment and teacher_cache exclude each other: of other texts the teacher gives other things"
                )
        if self.samples is not None:
            from greenformers.changes._samples import check_writes

            teacher: Any = given.teacher
            check_writes(teacher, examples.all)
            if self.samples < self.batch_size:
                raise ValueError(f"samples must be at least a batch of {self.batch_size}, got {self.samples}")
        if given.teacher_cache is not None and given.teacher_cache.exists() and not given.teacher_cache.is_dir():
            raise ValueError(f"teacher_cache must be a folder, and {given.teacher_cache} is a file")
        check_teacher(
            model, given.teacher, examples, self.weights, self.layer_map, cached=given.teacher_cache is not None
        )

    def _examples(self, model: "nn.Module", given: Given) -> "Distillation":
        from transformers import PreTrainedModel

        from greenformers.changes._distillation import Distillation

        if not isinstance(model, PreTrainedModel) or not isinstance(given.teacher, PreTrainedModel):
            raise ValueError(f"{type(model).__name__} is not a model of transformers: it cannot be healed")
        if given.training is None:
            raise ValueError("healing needs examples to learn from")
        return Distillation(given.training, self.schedule(given.seed))

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Train the network; a run that was stopped continues from the newest checkpoint of the folder given.

        Raises:
            ValueError: There are too few examples for a batch, or the model cannot learn from them.
            Stopped: A signal ended training early; the same call continues it.
        """
        if given.part:
            return self._apply_to_block(model, given)
        from greenformers.changes._adapters import adapting
        from greenformers.changes._block_healing import in_float32
        from greenformers.changes._distillation import Distillation
        from greenformers.changes._healing import distances, heal, reached
        from greenformers.changes._movement import moving
        from greenformers.changes._options import as_dict
        from greenformers.changes._replacement import Replacement
        from greenformers.changes._while_learning import on_device
        from greenformers.train.processes import training_device

        examples = self._examples(model, given)
        teacher: Any = given.teacher
        network: Any = model
        if self.samples is not None:
            from greenformers.changes._samples import written
            from greenformers.train.processes import first_before_others

            with first_before_others():
                rows = written(
                    teacher, examples.all, self.samples, seed=given.seed,
                    folder=None if given.folder is None else given.folder / "samples",
                    progress=lambda share: given.progress("the teacher writes", share),
                )  # fmt: skip
            examples = Distillation(rows, self.schedule(given.seed))
        with ExitStack() as stack:
            stack.enter_context(on_device(training_device(), network, teacher))
            if self.adapters is not None:  # first, so that they end when the network has its own type again
                stack.enter_context(adapting(network, self.adapters, given.seed))
            stack.enter_context(in_float32(network))
            for block in self._rounding(model, given):
                stack.enter_context(block)
            schedule = None if self.movement is None else stack.enter_context(moving(network, self.movement))
            history = heal(
                network, teacher, examples, self.schedule(given.seed), weights=self.weights,
                temperature=self.temperature, layer_map=self.layer_map, cache=given.teacher_cache,
                taught=given.taught if self.samples is None else None, folder=given.folder,
                resume=given.folder is not None, progress=given.progress,
                callbacks=() if schedule is None else (schedule,), better=self.movement is None,
                replace=None if self.augment is None else Replacement(teacher, self.augment, given.mask_token),
                precision="bf16" if self.precision == "bf16" else "fp32",
            )  # fmt: skip
        start, end = distances(history)[0], reached(history, best=self.patience is not None)
        said = f"{history.steps} steps of {self.batch_size} examples, distance {start:.4g} -> {end:.4g}"
        if self.movement is not None:
            said += f"; {_left(model)} of linear layers kept, by movement"
        elif not end <= start:
            said += ": farther than before, so all weights are as they were before; try a lower learning rate"
        return Report(as_dict(self), said, log=history.log)

    def in_block(self, part: "nn.Module") -> Self:
        """The same change, by which a block learns what the block of the original network gave.

        Raises:
            ValueError: An option is of the outputs of a whole network.
        """
        plain = type(self)()
        of_a_block = ("steps", "batch_size", "learning_rate", "adapters")
        for name in [entry.name for entry in fields(self) if entry.name not in of_a_block]:
            if getattr(self, name) != getattr(plain, name):
                raise ValueError(
                    f"block by block, from disk, a block learns what the original block gave: {name} must be left out"
                )
        return self

    def around_blocks(self, part: "nn.Module") -> None:
        """Embeddings and output layers are left as they are."""

    def _apply_to_block(self, block: "nn.Module", given: Given) -> Report:
        from greenformers.changes._adapters import adapting
        from greenformers.changes._bits_layers import BitsLinear
        from greenformers.changes._block_healing import heal_block
        from greenformers.changes._options import as_dict
        from greenformers.measure.parameters import bytes_of

        if given.calibration is None or given.outputs is None:
            raise ValueError("a block heals by what the original block gave, and that is not at hand")
        if self.adapters is not None and not any(isinstance(part, BitsLinear) for part in block.modules()):
            return Report(as_dict(self), "left as it is: it has no linear layer of few bits")
        with ExitStack() as stack:
            rank = self.adapters
            learned = None if rank is None else stack.enter_context(adapting(block, rank, given.seed))
            log = heal_block(
                block, given.calibration, given.outputs, steps=self.steps, batch_size=self.batch_size,
                learning_rate=self.learning_rate, seed=given.seed, learned=learned,
                progress=lambda share: given.progress("healing", share),
            )  # fmt: skip
        first, last = (entry["eval_distance"] for entry in (log[0], log[-1]))
        size, (path, _) = bytes_of(block), next(iter(block.named_parameters()))
        stays = "" if last <= first else ", so its weights are as they were"
        unit = UnitReport(path.rpartition(".")[0], f"healed, error {first:.3g} -> {last:.3g}{stays}", size, size)
        return Report(as_dict(self), f"healed for {self.steps} steps", [unit], log)

    def schedule(self, seed: int) -> "Schedule":
        """The schedule of training."""
        from greenformers.train.schedule import Schedule

        every = max(self.steps // 10, min(OFTEN, self.steps))
        judged = every if self.patience is not None else max(every, min(JUDGED, self.steps))
        return Schedule(
            steps=self.steps, batch_size=self.batch_size, learning_rate=self.learning_rate,
            optimizer="adamw" if self.muon_rate is None else "muon", muon_rate=self.muon_rate, seed=seed,
            evaluate_every=judged, log_every=every, save_every=every, patience=self.patience, shard=self.shard,
        )  # fmt: skip

    def _rounding(self, model: "nn.Module", given: Given) -> list[AbstractContextManager[None]]:
        later = given.following if self.aware else ()
        share = 1.0 if self.noise is None else self.noise
        blocks = [block for change in later if (block := change.rounding(model, share=share)) is not None]
        if self.aware and not blocks:
            raise ValueError(
                "aware healing needs a later change of the recipe that rounds weights, such as int8: there is none"
            )
        return blocks

    @classmethod
    def suited(cls, *, texts: int, before: "Sequence[Change]", following: "Sequence[Change]") -> "Heal":
        """The default, with no more examples in a step than there are, and aware of later changes that round.

        What is built anew learns at the higher rate of `ANEW`. Products are in bf16 where this machine is quicker so.
        """
        from greenformers.train.bf16 import quickest

        return cls(
            batch_size=max(1, min(cls.batch_size, texts)), aware=any(_rounds(change) for change in following),
            learning_rate=ANEW if any(change.builds_anew for change in before) else cls.learning_rate,
            precision=quickest(),
        )  # fmt: skip


def _rounds(change: Change) -> bool:
    """Whether a change rounds weights so far that a network has to be trained for it."""
    return type(change).rounding is not Change.rounding


def _left(model: "nn.Module") -> str:
    from greenformers.solve.sparse_linear import sparse_layers

    layers = {id(layer): layer for _, layer in sparse_layers(model)}.values()
    left, total = (sum(sizes) for sizes in zip(*(layer.sizes for layer in layers), strict=True))
    return f"{left:,} of {total:,} weights"
