"""Settings of a training run: the options of a command, the keys of its file, the content of run.json.

Settings build the task of a run; no part of a task depends on settings. Modules that are slow to import are imported
when they are needed, as the command line reads this file for its help.
"""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from greenformers.train.lottery import Lottery
    from greenformers.train.schedule import Schedule
    from greenformers.train.task import Start, Task

S = TypeVar("S", bound="Training")

KEPT = 16
"""Default of `k`, the size of what a mechanism keeps of full attention; small, as networks are by default."""


def setting(default: Any, about: str) -> Any:
    """A setting with its default and its help text."""
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True)
class Training:
    """Settings that all training runs have: the network and its training. The help text of each documents it."""

    places: ClassVar[tuple[str, ...]] = ()
    """Settings that name folders within that of the run's work, which may be moved: a run is the same elsewhere."""

    init: str | None = setting(
        None, "Run folder to start from: its tokenizer is used, and all of its weights that fit."
    )
    variant: str = setting(
        "transformer",
        "Variant of the network: transformer, lrt, an attention or a block, or lrt+ and one of these; in place of lrt "
        "narrow or narrow_flops, a dense network of smaller width with as many parameters or FLOPs as lrt.",
    )
    rank: int = setting(16, "Rank of the low-rank linear layers of lrt.")
    k: int | None = setting(
        None, "Size of what is kept of full attention: k of linformer, window of sliding_window, ...; 16 if not given."
    )
    option: dict[str, Any] | None = setting(None, "Option of the attention as name=value; may be repeated.")  # noqa: RUF009
    hidden: int = setting(64, "Width d of the network.")
    layers: int = setting(2, "Number of layers; of the encoder, where there is a decoder too.")
    decoder_layers: int | None = setting(None, "seq2seq: layers of the decoder; by default as many as the encoder's.")
    heads: int = setting(4, "Number of heads, a divisor of the width.")
    feed_forward: int = setting(256, "Width f of the feed-forward blocks.")
    residual: str | None = setting(
        None,
        "Residual connections: post or pre, by the place of layer norm; or reversible, which takes fewer bytes of "
        "memory, as activations are recomputed; by default pre in a causal network, else post.",
    )
    chunk: int | None = setting(
        None, "Positions that a feed-forward block computes at once; fewer take fewer bytes of memory."
    )
    feed_forward_kind: str | None = setting(
        None,
        "Kind of the feed-forward blocks, a file of greenformers/feed_forward: dense, gated, chunked, or switch, a "
        "mixture of experts; by default gated in a causal network, else dense.",
    )
    feed_forward_option: dict[str, Any] | None = setting(  # noqa: RUF009
        None, "Option of that kind as name=value, such as experts=8; may be repeated."
    )
    share: str | None = setting(None, "Parameters that all layers share: all, attention or feed_forward.")
    depth: str | None = setting(
        None,
        "Number of layers that each position goes through, a file of greenformers/depth: universal, one layer as often "
        "as a position needs; adaptive, a decoder with an exit after each layer; by default all layers.",
    )
    depth_option: dict[str, Any] | None = setting(None, "Option of the depth as name=value; may be repeated.")  # noqa: RUF009
    position: str | None = setting(
        None,
        "Position encoding, a file of greenformers/position: learned, sinusoidal, rotary, alibi, t5, shaw or huang; or "
        "none; by default rotary in a causal network whose attention takes it, else learned.",
    )
    memory: int = setting(
        0,
        "causal_lm: tokens of earlier segments in the segment memory; for transformer_xl, compressive and "
        "adaptive_span.",
    )
    pooling: str = setting("cls", "Pooling of a sequence into one vector: cls, mean or pma.")
    dropout: float = setting(0.0, "Dropout after the embedding and each block.")

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
        None, "Highest learning rate of Muon; by default five times the learning rate, which is AdamW's."
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

    def sizes(self) -> dict[str, Any]:
        """Arguments of the network's configuration, by name.

        Raises:
            ValueError: As in `start`.
        """
        from greenformers.model.slots import SHARED
        from greenformers.model.variant import NARROW, rank_option, slots

        for name in ("hidden", "layers", "heads", "feed_forward"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        options = dict(self.option or {})
        attention = self.variant.split("+")[-1]
        size = KEPT if self.k is None else self.k
        if self.k is not None and rank_option(self.variant) is None:
            raise ValueError(
                f"k is for an attention that keeps a part of full attention, the variant is {self.variant!r}; "
                f"got {self.k}"
            )
        if self.k is not None and (keeping := rank_option(self.variant) or "") in options:
            raise ValueError(f"k and option {keeping} exclude each other, got {self.k} and {options[keeping]}")
        if options and attention in ("transformer", "lrt", *NARROW):
            raise ValueError(f"option is for an attention, the variant is {self.variant!r}; got {', '.join(options)}")
        sizes: dict[str, Any] = {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.feed_forward,
            "hidden_dropout_prob": self.dropout,
            "residual": self.residual,
            "position": self.position,
            "pooling": self.pooling,
        }
        if self.chunk is not None:
            sizes |= {"feed_forward": "chunked", "feed_forward_options": {"chunk": self.chunk}}
        if self.feed_forward_kind is not None:
            sizes |= self._feed_forward(self.feed_forward_kind)
        elif self.feed_forward_option:
            given = ", ".join(self.feed_forward_option)
            raise ValueError(f"feed_forward_option is for a feed_forward_kind, got {given}")
        if self.share is not None:
            if self.depth is not None:
                raise ValueError(f"share must be left out with depth, got {self.share!r} and {self.depth!r}")
            if self.share not in SHARED:
                raise ValueError(f"share must be one of {', '.join(SHARED)}; got {self.share!r}")
            sizes |= {"depth": "shared", "shared": self.share}
        if self.depth is not None:
            sizes |= self._depth(self.depth)
        elif self.depth_option:
            raise ValueError(f"depth_option is for a depth, got {', '.join(self.depth_option)}")
        if self.decoder_layers is not None:
            sizes["decoder_layers"] = self.decoder_layers
        return sizes | slots(
            self.variant,
            rank=self.rank,
            attention_size=size,
            options={attention: options} if options else None,
            narrow=True,
        )

    def _depth(self, kind: str) -> dict[str, Any]:
        """Arguments of the configuration for a kind of depth.

        Raises:
            ValueError: It does not take an option.
        """
        from greenformers._registry import check_options
        from greenformers.depth import depth_class, names

        if kind in names():  # of others the configuration tells what is wrong
            try:
                check_options(kind, depth_class(kind), self.depth_option or {})
            except TypeError as error:
                raise ValueError(f"depth_option: {error}") from None
        return {"depth": kind, "depth_options": self.depth_option}

    def _feed_forward(self, kind: str) -> dict[str, Any]:
        """Arguments of the configuration for a kind of feed-forward block.

        Raises:
            ValueError: There is no such kind, it does not take an option, or `chunk` is given too.
        """
        from greenformers._registry import check_options
        from greenformers.feed_forward import feed_forward_class, names

        if kind not in names():
            raise ValueError(f"feed_forward_kind must be one of {', '.join(names())}; got {kind!r}")
        if self.chunk is not None:
            raise ValueError(f"chunk must be left out with feed_forward_kind, got {self.chunk} and {kind!r}")
        options = self.feed_forward_option or {}
        try:
            check_options(kind, feed_forward_class(kind), options)
        except TypeError as error:
            raise ValueError(f"feed_forward_option: {error}") from None
        return {"feed_forward": kind, "feed_forward_options": options or None}

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
        from greenformers.data import TOKENIZERS, Splits, load, train_tokenizer
        from greenformers.train.classification import ImageClassification
        from greenformers.train.task import OBJECTIVES, Task, objective_name, texts_of, tokenizer_of

        data = load(self.data, self.folder, self.limit, self.pool, self.seed, self.dataset)
        name = objective_name(self.objective, data, self.data)
        if isinstance(data, Splits):
            if self.memory:
                raise ValueError(f"memory is for causal_lm, the data are images; got {self.memory}")
            if self.target_length is not None:
                raise ValueError(f"target_length is for seq2seq, the data are images; got {self.target_length}")
            if self.decoder_layers is not None:
                raise ValueError(f"decoder_layers is for seq2seq, the data are images; got {self.decoder_layers}")
            if self.vocabulary is not None:
                raise ValueError(f"vocabulary is of texts, the data are images; got {self.vocabulary}")
            for name in ("tokenizer", "length"):
                if getattr(self, name) != getattr(type(self), name):
                    raise ValueError(f"{name} is of texts, the data are images; got {getattr(self, name)}")
            return Task(ImageClassification(data), None, self.start())
        if self.init is not None:
            if self.vocabulary is not None:
                raise ValueError(f"vocabulary is that of the run in init, {self.init}; got {self.vocabulary}")
            tokenizer = tokenizer_of("init must be", self.init)
        elif self.tokenizer not in TOKENIZERS:
            if self.vocabulary is not None:
                raise ValueError(f"vocabulary is that of the run in tokenizer, {self.tokenizer}; got {self.vocabulary}")
            tokenizer = tokenizer_of(f"tokenizer must be one of {', '.join(TOKENIZERS)} or", self.tokenizer)
        else:
            # Of shorter lengths the objective tells its own least one.
            length = max(self.length, 3)
            try:
                tokenizer = train_tokenizer(
                    self.tokenizer, texts_of(data), max_length=length, vocab_size=self.vocabulary
                )
            except ValueError as error:
                raise ValueError(str(error).replace("vocab_size", "vocabulary")) from None
        if self.memory and name != "causal_lm":
            raise ValueError(f"memory is for causal_lm, the objective is {name}; got {self.memory}")
        if self.target_length is not None and name != "seq2seq":
            raise ValueError(f"target_length is for seq2seq, the objective is {name}; got {self.target_length}")
        if self.decoder_layers is not None and name != "seq2seq":
            raise ValueError(f"decoder_layers is for seq2seq, the objective is {name}; got {self.decoder_layers}")
        if self.pooling != "cls" and name in ("causal_lm", "seq2seq", "tagging"):
            raise ValueError(f"pooling makes one vector of a text, which {name} has no use for; got {self.pooling!r}")
        options: dict[str, Any] = {"memory": self.memory} if name == "causal_lm" else {}
        options |= {"target_length": self.target_length} if name == "seq2seq" else {}
        return Task(OBJECTIVES[name](data, tokenizer, self.length, **options), tokenizer, self.start())


def value_of(text: str) -> Any:
    """The value of an option: a number, true or false, a JSON list, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
