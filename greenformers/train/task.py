"""From settings to data, tokenizer, objective and network."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast, set_seed

from greenformers.data import TOKENIZERS, Labelled, Pairs, Splits, Text, load, train_tokenizer
from greenformers.model.variant import rank_option, slots
from greenformers.train.causal_lm import CausalLM
from greenformers.train.classification import ImageClassification, TextClassification, TextRegression
from greenformers.train.masked_lm import MaskedLM
from greenformers.train.objective import Objective
from greenformers.train.replaced_token_detection import ReplacedTokenDetection
from greenformers.train.seq2seq import Seq2Seq
from greenformers.train.settings import Settings, Training

Data = Splits | Text | Pairs | Labelled

OBJECTIVES: dict[str, Any] = {
    "classification": TextClassification,
    "regression": TextRegression,
    "causal_lm": CausalLM,
    "masked_lm": MaskedLM,
    "replaced_token_detection": ReplacedTokenDetection,
    "seq2seq": Seq2Seq,
}
"""Names of the objectives; images are classified by `ImageClassification`."""

KEPT = 16
"""How much of full attention is kept where the settings do not say."""

MODEL = "model"
"""Folder of a run that holds the trained model and its tokenizer."""


@dataclass(frozen=True, eq=False)
class Task:
    """Everything a run needs besides its schedule.

    Attributes:
        objective: what is learnt.
        tokenizer: None for images.
        settings: where it all came from.
    """

    objective: Objective
    tokenizer: PreTrainedTokenizerFast | None
    settings: Training

    def network(self) -> PreTrainedModel:
        """The model a run starts with: a fresh one, or one with the weights of the run in `init`.

        Raises:
            ValueError: as `fresh`, or the run in `init` has another network.
            OSError: there is no finished run in `init`.
        """
        model = self.fresh()
        if self.settings.init is not None:
            _start_from(model, Path(self.settings.init) / MODEL)
        return model

    def fresh(self) -> PreTrainedModel:
        """A model that has learnt nothing.

        Raises:
            ValueError: a size out of range, or a variant that cannot do what the objective needs.
        """
        settings = self.settings
        set_seed(settings.seed)
        try:
            return self.objective.build(self.objective.config(**_sizes(settings)))
        except TypeError as error:
            if settings.option is None:
                raise
            raise ValueError(
                f"option must be of {settings.variant}, got {', '.join(settings.option)}: {error}"
            ) from error


def prepare(settings: Settings) -> Task:
    """Load the data, train the tokenizer, choose the objective.

    Raises:
        ValueError: a setting out of range, or an objective that is not for this data.
        OSError: a file or folder is missing.
    """
    data = load(
        settings.data,
        settings.folder,
        settings.limit,
        settings.pool,
        settings.seed,
        settings.dataset,
    )
    name = _objective_name(settings, data)
    if isinstance(data, Splits):
        if settings.memory:
            raise ValueError(f"memory is for causal_lm, the data are images; got {settings.memory}")
        return Task(ImageClassification(data), None, settings)
    if settings.init is not None:
        if settings.vocabulary is not None:
            raise ValueError(f"vocabulary is that of the run in init, {settings.init}; got {settings.vocabulary}")
        tokenizer = _tokenizer_of("init must be", settings.init)
    elif settings.tokenizer not in TOKENIZERS:
        tokenizer = _tokenizer_of(f"tokenizer must be one of {', '.join(TOKENIZERS)} or", settings.tokenizer)
    else:
        tokenizer = train_tokenizer(
            settings.tokenizer, _texts(data), max_length=settings.length, vocab_size=settings.vocabulary
        )
    if settings.memory and name != "causal_lm":
        raise ValueError(f"memory is for causal_lm, the objective is {name}; got {settings.memory}")
    more = {"memory": settings.memory} if name == "causal_lm" else {}
    return Task(OBJECTIVES[name](data, tokenizer, settings.length, **more), tokenizer, settings)


def _tokenizer_of(rule: str, run: str) -> PreTrainedTokenizerFast:
    folder = Path(run) / MODEL
    # What is not there would be taken for a name on the hub, and looked for there.
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(f"{rule} the folder of a finished run on text, got {run!r}")
    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def _objective_name(settings: Settings, data: Data) -> str:
    if isinstance(data, Text):
        allowed = ["causal_lm", "masked_lm", "replaced_token_detection"]
    elif isinstance(data, Pairs):
        allowed = ["seq2seq"]
    elif isinstance(data, Labelled) and data.classes is None:
        allowed = ["regression"]
    else:
        allowed = ["classification"]
    name = settings.objective or allowed[0]
    if name not in allowed:
        raise ValueError(f"objective must be one of {', '.join(allowed)} for {settings.data}, got {name!r}")
    return name


def _texts(data: Text | Pairs | Labelled) -> Any:
    if isinstance(data, Text):
        return data.split("train")
    if isinstance(data, Pairs):
        return (text for pair in data.split("train") for text in pair)
    return (text for segments in data.split("train").texts for text in segments)


def _sizes(settings: Training) -> dict[str, Any]:
    if settings.hidden < 1:
        raise ValueError(f"hidden must be at least 1, got {settings.hidden}")
    options = dict(settings.option or {})
    attention = settings.variant.split("+")[-1]
    kept = KEPT if settings.k is None else settings.k
    if settings.k is not None and rank_option(settings.variant) is None:
        raise ValueError(
            f"k is for an attention that keeps a part of full attention, the variant is {settings.variant!r}; "
            f"got {settings.k}"
        )
    if options and attention in ("transformer", "lrt"):
        raise ValueError(f"option is for an attention, the variant is {settings.variant!r}; got {', '.join(options)}")
    sizes = {
        "hidden_size": settings.hidden,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "intermediate_size": settings.feed_forward,
        "hidden_dropout_prob": settings.dropout,
        "residual": settings.residual,
        "position": settings.position,
        "pooling": settings.pooling,
        # Small networks learn slowly from BERT's 0.02, which suits d 768; this keeps variance at any width.
        "initializer_range": settings.hidden**-0.5,
    }
    if settings.chunk is not None:
        sizes |= {"feed_forward": "chunked", "feed_forward_options": {"chunk": settings.chunk}}
    if settings.share is not None:
        sizes |= {"depth": "shared", "shared": settings.share}
    if settings.decoder_layers is not None:
        sizes["decoder_layers"] = settings.decoder_layers
    return sizes | slots(
        settings.variant, rank=settings.rank, kept=kept, options={attention: options} if options else None
    )


def _start_from(model: PreTrainedModel, folder: Path) -> None:
    """Put into a model the weights of a trained one; the head is new unless it is one of the same kind and size.

    Raises:
        ValueError: the networks below the heads differ.
        OSError: there is no trained model in the folder.
    """
    stored = load_file(folder / "model.safetensors")
    own = model.state_dict()
    tied = set(model.all_tied_weights_keys)
    body = f"{model.base_model_prefix}."
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    for name, tensor in own.items():
        same = name in stored and stored[name].shape == tensor.shape
        if not name.startswith(body) and not (same and kind == type(model).__name__):
            stored.pop(name, None)
        elif name in stored and not same:
            there, here = tuple(stored[name].shape), tuple(tensor.shape)
            raise ValueError(f"init must have the sizes of this network: {name} is {there} there and {here} here")
        if name.startswith(body) and name not in stored and name not in tied:
            raise ValueError(f"init must be a network of the same slots as this one: it has no {name}")
    model.load_state_dict({name: tensor for name, tensor in stored.items() if name in own}, strict=False)
