"""Folders of sentence-transformers: a transformer, and the modules that turn its states into one vector for each text.

`modules.json` lists them with a type and a folder each. They are read and copied here without sentence-transformers,
which need not be installed. Only weights in safetensors are read, and only classes of sentence-transformers accepted.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel

from greenformers.checkpoint.files import check_weights, line, read_json

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
OF_THE_TRANSFORMER = "sentence_*_config.json"
"""Pattern of the settings beside the weights of the transformer, such as sentence_bert_config.json."""

LIBRARY = "sentence_transformers."
POOLED = "feature-extraction"
"""The task of a transformer whose states are pooled, and the default."""
WEIGHTED = ("Dense", "LayerNorm")
"""Modules that have weights."""

FROM_THE_HUB = [MODULES, SETTINGS, OF_THE_TRANSFORMER, *(f"*_*/*.{end}" for end in ("json", "safetensors", "txt"))]
TOKENIZER = (
    "tokenizer*", "vocab*", "merges.txt", "*.model", "special_tokens_map.json", "added_tokens.json", "chat_template*",
    "*.spm", "target_vocab.json", "entity_vocab.json", "bpe.codes", "normalizer.json",
)  # fmt: skip
ENDLESS = 10**6
"""Length in tokens from which on the length in a tokenizer's file means that there is no limit."""


@dataclass(frozen=True)
class Module:
    """A line of `modules.json`.

    Attributes:
        kind: Name of its class, such as "Pooling".
        folder: Folder with its files; it may be missing where there are none.
    """

    kind: str
    folder: Path


@dataclass(frozen=True)
class SentenceFolder:
    """A folder with a `modules.json`.

    Attributes:
        root: The folder.
        modules: Its modules, the transformer first.
        task: What the transformer is used for, `POOLED` as a rule.
        length: Longest text in tokens, None where the files name none.
    """

    root: Path
    modules: tuple[Module, ...]
    task: str
    length: int | None

    @property
    def transformer(self) -> Path:
        """The folder of the transformer: the root, or one within it."""
        return self.modules[0].folder

    def model_class(self, config: PreTrainedConfig, named: type[PreTrainedModel]) -> type[PreTrainedModel]:
        """The class of the transformer: without the head that a configuration may name, where its states are pooled."""
        if self.task != POOLED or _headless(named):
            return named
        classes: Any = MODEL_MAPPING.get(type(config), named)
        return classes[0] if isinstance(classes, tuple) else classes

    def carry(self, out: Path, length: int | None = None) -> None:
        """Copy the modules behind the transformer and the settings of all; the transformer of `out` is at its root.

        Args:
            out: The folder of the changed model.
            length: Longest text in tokens, where it differs from the folder's.
        """
        for name in (SETTINGS, OF_THE_TRANSFORMER):
            for path in sorted((self.root if name == SETTINGS else self.transformer).glob(name)):
                shutil.copyfile(path, out / path.name)
        for module in self.modules[1:]:
            (out / module.folder.name).mkdir(exist_ok=True)
            for path in [*module.folder.glob("*.json"), *module.folder.glob("*.safetensors")]:
                shutil.copyfile(path, out / module.folder.name / path.name)
        entries = listed(self.root)
        entries[0]["path"] = ""
        (out / MODULES).write_text(json.dumps(entries, indent=2) + "\n")
        for path in out.glob(OF_THE_TRANSFORMER):
            settings = read_json(path)
            if length is not None and settings.get("max_seq_length") not in (None, length):
                path.write_text(json.dumps(settings | {"max_seq_length": length}, indent=2) + "\n")


def set_width(out: Path, width: int) -> None:
    """Have the pooling modules of a written folder say the width of the states that they pool."""
    for entry in listed(out):
        path = out / entry["path"] / "config.json"
        if entry["type"].endswith(".Pooling") and path.is_file():
            said = read_json(path)
            sizes = {key: width for key in ("embedding_dimension", "word_embedding_dimension") if key in said}
            if said | sizes != said:
                path.write_text(json.dumps(said | sizes, indent=2) + "\n")


def _headless(cls: type[PreTrainedModel]) -> bool:
    return cls.__name__.endswith("Model") and not cls.__name__.endswith("LMHeadModel")


def sentence_folder(name: str | Path) -> SentenceFolder | None:
    """The modules of a local folder, or of a name on the hub; None where there is no `modules.json`.

    Raises:
        ValueError: The list is damaged or leads out of the folder, a module is of a class that is not of
            sentence-transformers, or weights are pickled or missing.
    """
    root = Path(name)
    if not root.is_dir():
        if root.exists() or str(name).startswith((".", "/", "~")):
            return None
        try:
            root = Path(snapshot_download(str(name), allow_patterns=FROM_THE_HUB))
        except (OSError, ValueError):  # reading the configuration raises what is wrong with the name
            return None
    if not (root / MODULES).is_file():
        return None
    modules = tuple(_module(root, entry) for entry in listed(root))
    if modules[0].kind != "Transformer":
        raise ValueError(f"{root / MODULES}: the first module must be a Transformer, got {modules[0].kind}")
    for module in modules[1:]:
        _check(module)
    settings = [read_json(path) for path in sorted(modules[0].folder.glob(OF_THE_TRANSFORMER))]
    said: dict[str, Any] = settings[0] if settings else {}
    return SentenceFolder(root, modules, said.get("transformer_task", POOLED), _length(said, modules[0].folder))


def listed(root: Path) -> list[dict[str, Any]]:
    """The lines of a folder's `modules.json`.

    Raises:
        ValueError: It is damaged.
    """
    try:
        content = json.loads((root / MODULES).read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{root / MODULES} is not JSON: {line(error)}") from error
    entries = content if isinstance(content, list) else []
    if not entries or not all(
        isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("path", "type"))
        for entry in entries
    ):
        raise ValueError(f"{root / MODULES} must hold a list of modules, each with a path and a type")
    return entries


def _module(root: Path, entry: dict[str, Any]) -> Module:
    path, kind = entry["path"], entry["type"]
    if not kind.startswith(LIBRARY):
        raise ValueError(f"{root / MODULES} asks for code of its own ({kind}): not run")
    if path and (Path(path).name != path or (root / path).resolve().parent != root.resolve()):
        raise ValueError(f"{root / MODULES} names {path!r}, which is not a folder within its own: not read")
    return Module(kind.rpartition(".")[2], root / path)


def _check(module: Module) -> None:
    """Check that the weights of a module can be read without running code."""
    pickles = sorted(path.name for end in ("*.bin", "*.pt") for path in module.folder.glob(end))
    if module.kind in WEIGHTED or pickles or any(module.folder.glob("*.safetensors")):
        try:
            check_weights(module.folder)
        except FileNotFoundError as error:
            raise ValueError(str(error)) from error


def _length(said: dict[str, Any], transformer: Path) -> int | None:
    """The longest text in tokens, from the transformer's settings or, as later versions write it, the tokenizer's."""
    length, where = said.get("max_seq_length"), "max_seq_length"
    path = transformer / "tokenizer_config.json"
    if length is None and path.is_file():
        length, where = read_json(path).get("model_max_length"), "model_max_length"
        length = None if isinstance(length, int | float) and length >= ENDLESS else length
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise ValueError(f"{where} in {transformer} must be at least 1, got {length!r}")
    return length
