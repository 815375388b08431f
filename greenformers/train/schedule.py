"""How long and how fast a model is trained."""

import math
from dataclasses import dataclass
from typing import get_args

import torch
from torch import nn

from greenformers.train import low_rank
from greenformers.train.bf16 import Precision
from greenformers.train.objective import Objective
from greenformers.train.stream import Stream

OPTIMIZERS = ("adamw", "muon")
"""Names of the optimisers."""

MUON = 5
"""Highest learning rate of Muon in units of AdamW's, where Muon is asked for without a rate.

An update of Muon is 0.2 of its rate, in the root of the mean square of its weights, one of AdamW about the rate: then
both are as large. At ten times, factors of low rank move too far: see docs/studies/low-rank-training.md.
"""

FACTORS = 0.5
"""What the factors of low-rank layers have of that rate, as the two of a layer both move their product.

Not with dense layers first: the schedule of the dense network goes on, see docs/studies/translation.md.
"""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a model is trained: linear warm-up, then cosine decay to 0 or a factor a step.

    Attributes:
        epochs: Number of passes over the training set.
        steps: Number of optimisation steps, in place of epochs.
        batch_size: Examples a step, of all processes together.
        accumulate: Parts of a batch that are computed one after the other; a divisor of the batch size.
        learning_rate: Highest learning rate of AdamW.
        optimizer: One of `OPTIMIZERS`: "adamw", or "muon", which trains the matrices inside the layers, and AdamW the
            rest. See `greenformers.train.optimizer`.
        muon_rate: Highest learning rate of Muon; by default five times the learning rate, and half of that
            where layers are of low rank from the start.
        low_rank_training: Way in which low-rank layers are trained, one of `greenformers.train.low_rank.WAYS`:
            "spectral", from truncated dense weights, with decay of the product of the factors; "dense_first", dense for
            a quarter of the steps and then truncated. Both start with new weights. None: as all others.
        warmup: Share of the steps that are warm-up, 0..1.
        decay: Factor of the learning rate after every step, in place of the cosine.
        weight_decay: Weight decay.
        clip: Largest norm of the gradient, to which it is clipped; 0 for no limit.
        seed: Seed of the order of the examples, of dropout and of masks.
        precision: Precision of the matrix products; "fp16" needs a GPU. Weights and optimiser stay float32.
        shard: Whether weights and optimiser state are spread over the processes (FSDP), where there are several.
        recompute: Whether activations within a layer are not stored but computed again in the backward pass.
        evaluate_every: Steps between evaluations; by default an epoch.
        log_every: Steps between entries of the loss; by default an epoch.
        save_every: Steps between checkpoints; by default an epoch.
        keep: Number of checkpoints to keep.
        patience: Evaluations without a better score after which training ends, with the weights of the best; None for
            no early stopping.
    """

    epochs: int = 40
    steps: int | None = None
    batch_size: int = 64
    accumulate: int = 1
    learning_rate: float = 2e-3
    optimizer: str = "adamw"
    muon_rate: float | None = None
    low_rank_training: str | None = None
    warmup: float = 0.1
    decay: float | None = None
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    precision: Precision = "fp32"
    shard: bool = False
    recompute: bool = False
    evaluate_every: int | None = None
    log_every: int | None = None
    save_every: int | None = None
    keep: int = 2
    patience: int | None = None

    def __post_init__(self) -> None:
        at_least_1 = (
            "epochs",
            "steps",
            "batch_size",
            "accumulate",
            "evaluate_every",
            "log_every",
            "save_every",
            "keep",
        )
        for name in (*at_least_1, "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name.removesuffix('_size')} must be at least 1, got {value}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in 0..{2**32 - 1}, got {self.seed}")
        if self.batch_size % self.accumulate:
            raise ValueError(f"accumulate must divide the batch, {self.batch_size}, got {self.accumulate}")
        for name in ("learning_rate", "muon_rate"):
            if (rate := getattr(self, name)) is not None and not 0 < rate < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, got {rate}")
        self._check_optimizer()
        self._check_low_rank_training()
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup must be in 0..1, got {self.warmup}")
        if self.decay is not None and not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {self.decay}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be at least 0 and finite, got {self.weight_decay}")
        if not self.clip >= 0:
            raise ValueError(f"clip must be at least 0, got {self.clip}")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}; got {self.precision!r}")
        if self.precision == "fp16" and not torch.cuda.is_available():
            raise ValueError("precision must be fp32 or bf16 where there is no GPU, got 'fp16'")

    def _check_optimizer(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}; got {self.optimizer!r}")
        if self.optimizer != "muon" and self.muon_rate is not None:
            raise ValueError(f"muon_rate is for optimizer muon, got {self.muon_rate} with {self.optimizer}")
        if self.optimizer == "muon" and self.shard:
            raise ValueError("shard must be off with optimizer muon, which makes one update of a whole matrix")

    def _check_low_rank_training(self) -> None:
        if (way := self.low_rank_training) is None:
            return
        if way not in low_rank.WAYS:
            raise ValueError(f"low_rank_training must be one of {', '.join(low_rank.WAYS)}; got {way!r}")
        if self.shard:
            raise ValueError(f"shard must be off with low_rank_training {way}, which works on whole weights")
        if way == "spectral" and self.optimizer == "muon":
            raise ValueError("optimizer must be adamw with low_rank_training spectral, as Muon decays single factors")
        if way == "dense_first" and self.patience is not None:
            raise ValueError(
                "patience must be left out with low_rank_training dense_first, whose layers it could leave dense; "
                f"got {self.patience}"
            )

    def highest_muon_rate(self, model: nn.Module) -> float | None:
        """Highest learning rate of Muon for a network; None: AdamW trains all."""
        if self.optimizer != "muon" or self.muon_rate is not None:
            return self.muon_rate
        factors = self.low_rank_training is None and low_rank.is_low_rank(model)
        return (FACTORS if factors else 1) * MUON * self.learning_rate

    def paces(self) -> tuple[int | None, int | None, int | None]:
        """Steps between entries of the loss, evaluations and checkpoints."""
        return self.log_every, self.evaluate_every, self.save_every

    def stream(self, objective: Objective) -> Stream:
        """The examples of the whole run.

        Raises:
            ValueError: The batch is larger than the training set.
        """
        steps = self.steps
        if steps is None:
            steps = self.epochs * Stream(objective, self.batch_size, 1, self.seed).steps_an_epoch
        return Stream(objective, self.batch_size, steps, self.seed)
