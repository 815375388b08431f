"""The task of a run: an objective, its tokenizer, and the model that it starts with."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast, set_seed

from greenformers._tensors import reading
from greenformers.data import Labelled, Pairs, Splits, Summaries, Tagged, Text
from greenformers.measure.narrower import controlled
from greenformers.train.causal_lm import CausalLM
from greenformers.train.classification import TextClassification, TextRegression
from greenformers.train.masked_lm import MaskedLM
from greenformers.train.objective import Objective
from greenformers.train.replaced_token_detection import ReplacedTokenDetection
from greenformers.train.seq2seq import Seq2Seq
from greenformers.train.stream import generator
from greenformers.train.tagging import Tagging

Data = Splits | Text | Pairs | Summaries | Labelled | Tagged

OBJECTIVES: dict[str, Any] = {
    "classification": TextClassification,
    "regression": TextRegression,
    "causal_lm": CausalLM,
    "masked_lm": MaskedLM,
    "replaced_token_detection": ReplacedTokenDetection,
    "seq2seq": Seq2Seq,
    "tagging": Tagging,
}
"""Names of the objectives; images are classified by `ImageClassification`."""

MODEL = "model"
"""Folder of a run that holds the trained model and its tokenizer."""


@dataclass(frozen=True)
class Start:
    """The network that a run starts with.

    Attributes:
        sizes: Arguments of its configuration, by name.
        seed: Seed of its weights.
        init: Run folder that its weights come from; None for new weights.
        variant: Name of the variant, for messages.
        options: Names of the options of its attention that were given.
    """

    sizes: dict[str, Any]
    seed: int
    init: Path | None
    variant: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Task:
    """Everything a run needs besides its schedule.

    Attributes:
        objective: The objective that the model is trained for.
        tokenizer: Tokenizer of the texts; None for images.
        start: The network that the run starts with.
    """

    objective: Objective
    tokenizer: PreTrainedTokenizerFast | None
    start: Start

    def network(self) -> PreTrainedModel:
        """The model that a run starts with: an untrained one, or one with the weights of the run in `start.init`.

        Raises:
            ValueError: As in `fresh`, or the run in `init` has another network.
            OSError: There is no finished run in `init`.
        """
        model = self.fresh()
        if self.start.init is not None:
            _start_from(model, self.start.init / MODEL)
        return model

    def fresh(self) -> PreTrainedModel:
        """A new, untrained model.

        Raises:
            ValueError: A size is out of range, or a variant that cannot do what the objective needs.
        """
        start = self.start
        try:
            config = self.objective.config(**start.sizes)
            config = controlled(start.variant, config, self.objective.build, self._call)
            set_seed(start.seed)
            return self.objective.build(config)
        except TypeError as error:
            if not start.options:
                raise
            raise ValueError(f"option must be of {start.variant}, got {', '.join(start.options)}: {error}") from error

    def _call(self, model: nn.Module, _: Any) -> object:
        """Run a model on the first training example."""
        return model(**self.objective.collate([self.objective.example("train", 0, generator(self.start.seed))]))


def tokenizer_of(rule: str, run: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a finished run.

    Args:
        rule: Beginning of the message, such as "init must be".
        run: Folder of the run.

    Raises:
        ValueError: There is no finished run on text in the folder.
    """
    folder = Path(run) / MODEL
    # A folder that is not there would be taken for a name on the hub.
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{rule} the folder of a finished run on text, got {run!r}")
    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def objective_name(given: str | None, data: Data, called: str) -> str:
    """The objective of a run: the one given, or the one that its data are made for.

    Args:
        given: Name in `OBJECTIVES`, or None.
        data: Data set of the run.
        called: Name of the data set, for the message.

    Raises:
        ValueError: The objective is not for this data.
    """
    if isinstance(data, Text):
        allowed = ["causal_lm", "masked_lm", "replaced_token_detection"]
    elif isinstance(data, Pairs | Summaries):
        allowed = ["seq2seq"]
    elif isinstance(data, Tagged):
        allowed = ["tagging"]
    elif isinstance(data, Labelled) and data.classes is None:
        allowed = ["regression"]
    else:
        allowed = ["classification"]
    name = given or allowed[0]
    if name not in allowed:
        raise ValueError(f"objective must be one of {', '.join(allowed)} for {called}, got {name!r}")
    return name


def texts_of(data: Text | Pairs | Summaries | Labelled | Tagged) -> Iterable[str]:
    """Every text of the training split."""
    if isinstance(data, Text):
        return data.split("train")
    if isinstance(data, Pairs):
        return (text for pair in data.split("train") for text in pair)
    if isinstance(data, Summaries):
        return (text for document in data.split("train") for text in (document.source, *document.summaries))
    if isinstance(data, Tagged):
        return (" ".join(words) for words in data.split("train").words)
    return (text for segments in data.split("train").texts for text in segments)


def _start_from(model: PreTrainedModel, folder: Path) -> None:
    """Put into a model the weights of a trained one; the head is new unless it is one of the same kind and size.

    Raises:
        ValueError: The networks below the heads differ in more than their pooling, one is an encoder and the other a
            decoder, or the weights are damaged.
        OSError: There is no trained model in the folder.
    """
    with reading(folder / "model.safetensors"):
        stored = load_file(folder / "model.safetensors")
    own = model.state_dict()
    tied = set(model.all_tied_weights_keys)
    body = f"{model.base_model_prefix}."
    described = json.loads((folder / "config.json").read_text())
    kind = described["architectures"][0]
    if not any(name.startswith(body) for name in stored):
        this = type(model).__name__
        raise ValueError(f"init must be a run with the {model.base_model_prefix} of a {this}, it is one of a {kind}")
    for name, tensor in own.items():
        same = name in stored and stored[name].shape == tensor.shape
        if not name.startswith(body) and not (same and kind == type(model).__name__):
            stored.pop(name, None)
        elif name in stored and not same:
            there, here = tuple(stored[name].shape), tuple(tensor.shape)
            raise ValueError(f"init must have the sizes of this network: {name} is {there} there and {here} here")
        if name.startswith(body) and name not in stored and name not in tied:
            raise ValueError(f"init must be a network of the same slots as this one: it has no {name}")
    # Pooling, which pre-training does not use, may be another one here.
    below = [name for name in stored if name.startswith(body) and not name.startswith(f"{body}pool.")]
    for name in below:
        if name not in own:
            raise ValueError(f"init must be a network of the same slots as this one: it alone has {name}")
    config = model.config.to_dict()
    for name in ("num_attention_heads", "residual", "position", "depth", "shared"):  # which no shape of a weight tells
        if name in described and described[name] != config.get(name):
            difference = f"its {name} is {described[name]}, that of this one {config.get(name)}"
            raise ValueError(f"init must be a network of the same slots as this one: {difference}")
    model.load_state_dict({name: tensor for name, tensor in stored.items() if name in own}, strict=False)
