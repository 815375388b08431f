"""The pooling of a model of sentence-transformers, from the files of its folder or from the loaded object."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers.checkpoint.files import model_class, read_json
from greenformers.checkpoint.sentence import LIBRARY, POOLED, SentenceFolder, sentence_folder
from greenformers.data._pooling import ATTACHED, MODES, Dense, Layer, LayerNorm, Normalize, SentencePooling, attach

EMBEDDING = "sentence_embedding"
LEGACY = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
"""The keys that versions before 6 wrote, in the order in which their vectors are concatenated."""

KINDS = ("Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")

Description = tuple[str, Mapping[str, Any], Mapping[str, Tensor]]
"""The kind, settings and weights of a module."""


def read_pooling(folder: SentenceFolder) -> SentencePooling:
    """The pooling of a folder.

    Raises:
        ValueError: A module is of an unknown kind, or its settings and weights do not fit.
    """
    described = [(module.kind, _settings(module.folder), _weights(module.folder)) for module in folder.modules[1:]]
    return replace(_pooling(described, str(folder.root)), length=folder.length, folder=folder.root)


def know(model: nn.Module) -> None:
    """Attach to a model the pooling of the folder that it was read from, if it is one of sentence-transformers.

    Of a model from the hub the other modules are asked for there, once.

    Raises:
        ValueError: Raised as by `sentence_folder` and `read_pooling`.
    """
    name = getattr(model, "name_or_path", "")
    if hasattr(model, ATTACHED) or not isinstance(model, PreTrainedModel) or not name:
        return
    folder = sentence_folder(name) if Path(name).is_dir() else _on_the_hub(name)
    if folder is None or not (folder.root / "config.json").is_file():
        return
    named = model_class(read_json(folder.root / "config.json"), folder.root)
    if type(model) in (named, folder.model_class(model.config, named)):  # and not another class, with another head
        know_folder(model, folder)


@cache
def _on_the_hub(name: str) -> SentenceFolder | None:
    """The modules of a name on the hub; None too where no configuration was read by that name."""
    try:
        read = isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # it names a folder that is no longer there
        read = False
    return sentence_folder(name) if read else None


def know_folder(model: PreTrainedModel, folder: SentenceFolder) -> None:
    """Attach to a model the pooling of its folder, or the folder alone where its states are not pooled.

    Raises:
        ValueError: Raised as by `read_pooling`.
    """
    plain = SentencePooling(length=folder.length, folder=folder.root)
    attach(model, read_pooling(folder) if folder.task == POOLED else plain)


def is_sentence_transformer(model: object) -> bool:
    """Whether a model is a SentenceTransformer; sentence-transformers need not be installed for it."""
    return isinstance(model, nn.Sequential) and any(
        f"{cls.__module__}.".startswith(LIBRARY) for cls in type(model).__mro__
    )


def transformer_in(model: Any) -> PreTrainedModel:
    """The transformer of a SentenceTransformer, with the pooling of its modules attached.

    Raises:
        ValueError: Its first module holds no model of transformers, or a module is of an unknown kind.
    """
    transformer = getattr(model[0], "auto_model", None) if len(model) else None
    if not isinstance(transformer, PreTrainedModel):
        raise ValueError(f"the first module of a {type(model).__name__} must hold a model of transformers")
    if getattr(model[0], "transformer_task", POOLED) != POOLED:
        raise ValueError(f"a {type(model).__name__} makes no sentence embeddings: change its model[0].auto_model")
    described: list[Description] = [
        (type(module).__name__, getattr(module, "get_config_dict", dict)(), module.state_dict())
        for module in list(model)[1:]
    ]
    pooling = _pooling(described, f"the {type(model).__name__}")
    attach(transformer, replace(pooling, length=model.max_seq_length, in_memory=True))
    return transformer


def _pooling(described: Iterable[Description], where: str) -> SentencePooling:
    modes: tuple[str, ...] = ()
    layers: list[Layer] = []
    width: int | None = None
    for kind, settings, weights in described:
        if kind not in KINDS or (kind == "Pooling") == bool(modes):
            raise ValueError(
                f"{where}: sentence embeddings need one Pooling, then any of {', '.join(KINDS[1:])}; got {kind}"
            )
        names = {settings.get(key) or EMBEDDING for key in ("module_input_name", "module_output_name")}
        if names != {EMBEDDING}:
            raise ValueError(f"{where}: {kind} must read and write {EMBEDDING}, got {', '.join(sorted(names))}")
        if kind == "Pooling":
            modes = _modes(settings, where)
            own = settings.get("embedding_dimension", settings.get("word_embedding_dimension"))
            width = own * len(modes) if isinstance(own, int) else None
        elif kind == "Normalize":
            layers.append(Normalize())
        elif kind != "Dropout":
            layer = _dense(settings, weights, where) if kind == "Dense" else _layer_norm(weights, where)
            if width is not None and layer.weight.shape[-1] != width:
                raise ValueError(f"{where}: {kind} must take {width} numbers a text, got {layer.weight.shape[-1]}")
            width = len(layer.weight)
            layers.append(layer)
    return SentencePooling(modes or ("mean",), tuple(layers))


def _modes(settings: Mapping[str, Any], where: str) -> tuple[str, ...]:
    setting = settings.get("pooling_mode")
    if setting is None:
        setting = [mode for key, mode in LEGACY.items() if settings.get(key)] or "mean"
    modes = (setting,) if isinstance(setting, str) else tuple(setting) if isinstance(setting, list | tuple) else ()
    if not modes or not all(isinstance(mode, str) and mode in MODES for mode in modes):
        raise ValueError(f"{where}: pooling_mode must be of {', '.join(MODES)}; got {setting!r}")
    return modes


def _dense(settings: Mapping[str, Any], weights: Mapping[str, Tensor], where: str) -> Dense:
    residual: Any = None
    if settings.get("use_residual"):
        residual = weights.get("residual.weight", "input")
    activation = _activation(settings.get("activation_function", "torch.nn.Tanh"), where)
    return Dense(_weight(weights, "linear.weight", where), weights.get("linear.bias"), activation, residual)


def _layer_norm(weights: Mapping[str, Tensor], where: str) -> LayerNorm:
    return LayerNorm(_weight(weights, "norm.weight", where), _weight(weights, "norm.bias", where))


def _weight(weights: Mapping[str, Tensor], name: str, where: str) -> Tensor:
    if name not in weights:
        raise ValueError(f"{where}: a module lacks the weight {name}")
    return weights[name]


def _activation(name: object, where: str) -> nn.Module:
    """An activation of torch, by the name that sentence-transformers writes: torch.nn.modules.activation.Tanh."""
    cls = getattr(nn, name.rpartition(".")[2], None) if str(name).startswith("torch.nn.") else None  # type: ignore[attr-defined]
    try:
        activation = cls() if isinstance(cls, type) and issubclass(cls, nn.Module) else None
    except TypeError:  # not an activation: it takes sizes
        activation = None
    if activation is None or any(True for _ in activation.parameters()):
        raise ValueError(f"{where}: activation_function must be an activation of torch.nn, got {name!r}")
    return activation


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return read_json(path) if path.is_file() else {}


def _weights(folder: Path) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    return load_file(path) if path.is_file() else {}


def check_carried(out: Path, pooling: SentencePooling, width: int) -> None:
    """Check that the written folder gives the same sentence embeddings as the model.

    Raises:
        ValueError: It does not.
    """
    folder = sentence_folder(out)
    if folder is None:
        raise ValueError("the network was not saved: its modules were lost")
    if folder.task != POOLED:
        return
    again = read_pooling(folder)
    hidden = torch.randn(2, 5, width, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    if not torch.equal(again(hidden, mask), pooling(hidden, mask)):
        raise ValueError("the network was not saved: read again, its modules make other sentence embeddings")
