"""Settings of a training run: the options of a command, the keys of its file, the content of run.json.

Settings build the task of a run; no part of a task depends on settings. Modules that are slow to import are imported
when they are needed, as the command line reads this file for its help.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from greenformers.train.network import NetworkSettings
from greenformers.train.setting import setting

if TYPE_CHECKING:
    from greenformers.train.lottery import Lottery
    from greenformers.train.schedule import Schedule
    from greenformers.train.task import Start, Task

S = TypeVar("S", bound="Training")


@dataclass(frozen=True)
class Training(NetworkSettings):
    """Settings that all training runs have: the network and its training. The help text of each documents it."""

    places: ClassVar[tuple[str, ...]] = ()
    """Settings that name folders within that of the run's work, which may be moved: a run is the same elsewhere."""
    unused: ClassVar[tuple[str, ...]] = ()
    """Settings that this kind of run has no use for: no flags of its command, and refused in files."""

    init: str | None = setting(
        None, "Run folder to start from: its tokenizer is used, and all of its weights that fit."
    )
    memory: int = setting(
        0,
        "causal_lm: tokens of earlier segments in the segment memory; for transformer_xl, compressive and "
        "adaptive_span.",
    )

    epochs: int = setting(25, "Number of passes over the training set.")
    steps: int | None = setting(None, "Number of optimisation steps, in place of epochs.")
    batch: int = setting(64, "Examples a step, of all processes together.")
    accumulate: int = setting(1, "Parts of a batch that are computed one after the other.")
    learning_rate: float = setting(2e-3, "Highest learning rate.")
    optimizer: str | None = setting(
        None,
        "Optimiser: adamw; or muon, of the matrices inside the layers, and AdamW of the rest; by default muon for new "
        "weights that are whole on a device, else adamw.",
    )
    muon_rate: float | None = setting(
        None,
        "Highest learning rate of Muon; by default five times the learning rate, which is AdamW's, and half of that "
        "where layers are of low rank from the start.",
    )
    low_rank_training: str | None = setting(
        None,
        "Way to train low-rank layers: spectral, from truncated dense weights, with decay of products; dense_first, "
        "dense for a quarter of the steps, then truncated; by default as all others.",
    )
    warmup: float = setting(0.1, "Share of the steps that are warm-up.")
    decay: float | None = setting(None, "Factor of the learning rate after every step; by default a cosine down to 0.")
    weight_decay: float = setting(0.01, "Weight decay.")
    clip: float = setting(1.0, "Largest norm of the gradient, to which it is clipped; 0 for no limit.")
    seed: int = setting(0, "Seed of weights, order of the examples, dropout and masks.")
    precision: str = setting("fp32", "Precision of the matrix products: fp32, bf16, or fp16 on a GPU.")
    shard: bool = setting(False, "Spread weights and optimiser state over several processes (FSDP).")
    recompute: bool = setting(
        False, "Compute activations within a layer again in the backward pass: fewer bytes of memory, more time."
    )
    evaluate_every: int | None = setting(None, "Steps between evaluations; by default an epoch.")
    log_every: int | None = setting(None, "Steps between entries of the loss; by default an epoch.")
    save_every: int | None = setting(None, "Steps between checkpoints; by default an epoch.")
    keep: int = setting(2, "Number of checkpoints to keep.")
    snapshots: str | None = setting(
        None,
        "Steps after which the model is saved in OUT/at/STEP, with commas between; --init takes any of these folders.",
    )
    patience: int | None = setting(
        None, "Evaluations without a better score after which training ends, with the weights of the best."
    )
    micro_batches: int | None = setting(
        None, "Pipeline over the processes of torchrun (GPipe): number of parts of a batch that are in it at once."
    )
    stages: int | None = setting(
        None,
        "Stages of the pipeline, by default as many as processes; with fewer there are as many pipelines as processes "
        "over stages, each for its rows of the batch.",
    )

    lottery_rounds: int = setting(
        0,
        "Lottery ticket: number of times that the linear layers' weights of least size are dropped and the rest is "
        "trained again from the start; 0 for none.",
    )
    lottery_drop: float | None = setting(
        None, "Lottery ticket: share of the weights left that each round drops; 0.2 if not given."
    )
    lottery_rewind: float | None = setting(
        None, "Lottery ticket: share of the steps that later rounds do not train again; 0 if not given."
    )
    lottery_control: str | None = setting(
        None,
        "Lottery ticket: network of the last round: none, which is the ticket, or a control: random (mask), reinit "
        "(new weights) or worst (mask, of the dense network's least weights); none if not given.",
    )

    @property
    def asked_optimizer(self) -> str:
        """The optimiser: where none is given, Muon if this kind of run can have it and its weights are new.

        What AdamW has trained, AdamW goes on with.
        """
        from greenformers.train.shard import is_sharded

        if self.optimizer is not None or self.muon_rate is not None:
            return self.optimizer or "muon"
        new = self.init is None and not self.lottery_rounds and self.low_rank_training != "spectral"
        whole = self.micro_batches is None and not is_sharded(self.shard)
        return "muon" if new and whole else "adamw"

    def settled(self: S) -> S:
        """The same settings with their optimiser, which follows from more than these where none is given."""
        return replace(self, optimizer=self.asked_optimizer)

    @property
    def schedule(self) -> "Schedule":
        """How long and how fast the model is trained.

        Raises:
            ValueError: A setting is out of range.
        """
        from greenformers.train.schedule import Schedule

        names = {entry.name for entry in fields(Schedule)} - {"batch_size"}
        given = {name: value for name, value in asdict(self).items() if name in names}
        return Schedule(**given | {"batch_size": self.batch, "optimizer": self.asked_optimizer})

    @property
    def lottery(self) -> "Lottery | None":
        """The rounds of a lottery ticket; None for a plain training.

        Raises:
            ValueError: A setting is out of range, has no effect without rounds, or excludes them.
        """
        from greenformers.train.lottery import Lottery

        names = ("drop", "rewind", "control")
        given = {name: getattr(self, f"lottery_{name}") for name in names}
        given = {name: value for name, value in given.items() if value is not None}
        if not self.lottery_rounds:
            for name, value in given.items():
                raise ValueError(f"lottery_{name} is for lottery_rounds of at least 1, got {value}")
            return None
        if self.micro_batches is not None:
            raise ValueError(f"micro_batches is not for lottery_rounds: must be left out, got {self.micro_batches}")
        if self.shard:
            raise ValueError("shard must be off with lottery_rounds: masks are of whole weights")
        if self.asked_optimizer != "adamw":
            raise ValueError("optimizer must be adamw with lottery_rounds: Muon moves dropped weights too")
        if self.low_rank_training is not None:
            raise ValueError(
                "low_rank_training must be left out with lottery_rounds, as its ways move dropped weights too; "
                f"got {self.low_rank_training!r}"
            )
        if self.lottery_rewind and self.patience is not None:
            raise ValueError(
                f"patience must be left out with lottery_rewind, whose step it could end before; got {self.patience}"
            )
        return Lottery(self.lottery_rounds, **given)

    @property
    def snapshot_steps(self) -> list[int]:
        """Steps after which the model is saved.

        Raises:
            ValueError: The steps are not whole numbers.
        """
        words = [word.strip() for word in (self.snapshots or "").split(",") if word.strip()]
        if not all(word.isdecimal() for word in words):
            raise ValueError(f"snapshots must be whole numbers with commas between, got {self.snapshots!r}")
        return sorted(map(int, words))

    def check_unused(self) -> None:
        """Raise ValueError where a setting is given that this kind of run has no use for."""
        for name in self.unused:
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"{name} has no use here: it must be left out, got {getattr(self, name)}")

    def differs(self, other: "Training") -> list[str]:
        """Names of the settings in which a run differs from another, its places aside."""
        return [name for name, value in vars(self).items() if name not in self.places and vars(other)[name] != value]

    def write(self, path: Path) -> None:
        """Write all settings as JSON, which `read` reads; whole or not at all."""
        from greenformers.train import checkpoint

        checkpoint.replace(path, json.dumps(asdict(self), indent=1) + "\n")

    def task(self) -> "Task":
        """The task of the run: its objective, tokenizer and network.

        Raises:
            ValueError: A setting is out of range, or settings that exclude each other.
            OSError: A file or folder is missing.
        """
        raise NotImplementedError

    def start(self) -> "Start":
        """The network that is trained, and the run its weights come from.

        Raises:
            ValueError: A setting is out of range, or settings that exclude each other.
        """
        from greenformers.train.task import Start

        init = None if self.init is None else Path(self.init)
        return Start(self.sizes(), self.seed, init, self.variant, tuple(self.option or ()))

    @staticmethod
    def networks() -> ModuleType:
        """The module that holds the classes of the trained models."""
        from greenformers import model

        return model


@dataclass(frozen=True)
class Settings(Training):
    """Settings of a run on one of our data sets: data, objective, network and training."""

    data: str = setting("digits", "Data set, see `greenformers.data.names()`.")
    folder: str | None = setting(None, "Folder that holds the files of the data set.")
    dataset: str | None = setting(
        None, "Name of a data set for the `datasets` library, instead of a folder; a configuration follows a colon."
    )
    limit: int | None = setting(None, "Most examples to take of each split.")
    pool: int = setting(1, "Images: side of the squares of pixels that are averaged into one.")
    objective: str | None = setting(
        None,
        "Objective: classification, regression, tagging, causal_lm, masked_lm, replaced_token_detection or seq2seq; by "
        "default the one that the data set is made for.",
    )
    tokenizer: str = setting(
        "bpe",
        "Text: characters, bytes, words or bpe, trained on the training split; or a run folder, to use its tokenizer.",
    )
    vocabulary: int | None = setting(None, "Size of the bpe vocabulary; 8000 if not given.")
    length: int = setting(128, "Text: longest sequence in tokens.")
    target_length: int | None = setting(
        None, "seq2seq: longest target in tokens, in training and in writing; by default the length."
    )

    def task(self) -> "Task":  # noqa: D102
        from greenformers.data import Splits, load
        from greenformers.train.classification import ImageClassification
        from greenformers.train.task import OBJECTIVES, Task, objective_name

        data = load(self.data, self.folder, self.limit, self.pool, self.seed, self.dataset)
        name = objective_name(self.objective, data, self.data)
        if isinstance(data, Splits):
            self._check_of_images()
            return Task(ImageClassification(data), None, self.start())
        tokenizer = self._tokenizer(data)
        self._check_of_texts(name)
        options: dict[str, Any] = {"memory": self.memory} if name == "causal_lm" else {}
        options |= {"target_length": self.target_length} if name == "seq2seq" else {}
        return Task(OBJECTIVES[name](data, tokenizer, self.length, **options), tokenizer, self.start())

    def _check_of_images(self) -> None:
        """Raise ValueError where a setting has no effect on images."""
        if self.memory:
            raise ValueError(f"memory is for causal_lm, the data are images; got {self.memory}")
        for name in ("target_length", "decoder_layers"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is for seq2seq, the data are images; got {getattr(self, name)}")
        for name in ("vocabulary", "tokenizer", "length"):
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"{name} is of texts, the data are images; got {getattr(self, name)}")

    def _check_of_texts(self, objective: str) -> None:
        """Raise ValueError where a setting has no effect on an objective."""
        if self.memory and objective != "causal_lm":
            raise ValueError(f"memory is for causal_lm, the objective is {objective}; got {self.memory}")
        for name in ("target_length", "decoder_layers"):
            if getattr(self, name) is not None and objective != "seq2seq":
                raise ValueError(f"{name} is for seq2seq, the objective is {objective}; got {getattr(self, name)}")
        if self.pooling != "cls" and objective in ("causal_lm", "seq2seq", "tagging"):
            raise ValueError(
                f"pooling makes one vector of a text, which {objective} has no use for; got {self.pooling!r}"
            )

    def _tokenizer(self, data: Any) -> Any:
        """That of the run in `init` or `tokenizer`, or one that is trained on the texts.

        Raises:
            ValueError: There is no such tokenizer or run, or the vocabulary is that of a run.
        """
        from greenformers.data import TOKENIZERS, train_tokenizer
        from greenformers.train.task import texts_of, tokenizer_of

        if self.init is None and self.tokenizer in TOKENIZERS:
            # Of shorter lengths the objective tells its own least one.
            length = max(self.length, 3)
            try:
                return train_tokenizer(self.tokenizer, texts_of(data), max_length=length, vocab_size=self.vocabulary)
            except ValueError as error:
                raise ValueError(str(error).replace("vocab_size", "vocabulary")) from None
        source, run = ("tokenizer", self.tokenizer) if self.init is None else ("init", self.init)
        if self.vocabulary is not None:
            raise ValueError(f"vocabulary is that of the run in {source}, {run}; got {self.vocabulary}")
        allowed = "" if source == "init" else f"one of {', '.join(TOKENIZERS)} or"
        return tokenizer_of(f"{source} must be {allowed}".rstrip(), run)
