"""Read a trained model and its tokenizer, from a folder or the hub; compressed ones too."""

from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from greenformers.checkpoint.description import NAME
from greenformers.checkpoint.files import check_local, check_weights, line, model_class, read_json
from greenformers.checkpoint.load import load
from greenformers.checkpoint.pack_quantized import METHOD, load_pack_quantized
from greenformers.checkpoint.pooling import know_folder
from greenformers.checkpoint.sentence import TOKENIZER, SentenceFolder, sentence_folder
from greenformers.data._tasks import KINDS

FEATURES = ("preprocessor_config.json", "processor_config.json")


def pretrained(name: str, needs_tokenizer: bool = False) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """A model from a local folder, without any download, or from the hub, and its tokenizer.

    Only weights in safetensors are read, and no code of the model is run. A compressed model is read by `load`. From a
    folder of sentence-transformers it is the transformer, to which the pooling of the other modules is attached.

    Raises:
        ValueError: Files are damaged or foreign, the model asks for code of its own, or a tokenizer that is needed is
            missing.
        OSError: The model is not found.
    """
    modules = sentence_folder(name)
    if modules is not None and modules.transformer != modules.root:
        name = str(modules.transformer)
    local = Path(name).is_dir()
    if local:
        check_local(read_json(Path(name) / "config.json"), Path(name))
        check_weights(Path(name))
    elif Path(name).exists() or name.startswith((".", "/", "~")) or _below_a_folder(Path(name)):
        raise FileNotFoundError(f"{name} is not a folder with a model")
    options: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    model = _model(name, local, options, modules)
    if modules is not None:
        know_folder(model, modules)
    tokenizer = tokenizer_of(name)
    if needs_tokenizer:
        check_tokenizer(tokenizer, model, name)
    return model.eval(), tokenizer


def tokenizer_of(name: str) -> PreTrainedTokenizerBase | None:
    """The tokenizer in a local folder, or on the hub; None where the folder has none.

    Raises:
        ValueError: It cannot be read.
    """
    local = Path(name).is_dir()
    # Without a file `transformers` may build a tokenizer with an empty vocabulary.
    if local and not any(file for pattern in TOKENIZER for file in Path(name).glob(pattern)):
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=local, trust_remote_code=False)
    except Exception as error:
        raise ValueError(f"{name} has no tokenizer that can be read: {line(error)}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def model_name(model: str) -> str:
    """What a model is called: its name on the hub, else that of its folder, or of the run whose `model` it is."""
    if not Path(model).is_dir():
        return model
    folder = Path(model).resolve()
    cached = [part for part in folder.parts if part.startswith("models--")]
    if cached:
        return cached[-1].removeprefix("models--").replace("--", "/")
    return folder.parent.name if folder.name == "model" and folder.parent.name else folder.name


def features_of(name: str, model: PreTrainedModel) -> Any:
    """The image processor or feature extractor beside a model; None for a model of texts, or where there is none.

    Raises:
        ValueError: Its file cannot be read.
    """
    kind = KINDS.get(model.main_input_name, "text")
    local = Path(name).is_dir()
    if kind == "text" or (local and not any((Path(name) / file).is_file() for file in FEATURES)):
        return None
    loader: Any = AutoImageProcessor if kind == "image" else AutoFeatureExtractor
    try:
        return loader.from_pretrained(name, local_files_only=local, trust_remote_code=False)
    except Exception as error:  # whatever transformers makes of files that anyone may have written
        raise ValueError(
            f"{name} has no {loader.__name__.removeprefix('Auto')} that can be read: {line(error)}"
        ) from error


def _model(name: str, local: bool, options: dict[str, Any], modules: SentenceFolder | None) -> PreTrainedModel:
    try:
        config = AutoConfig.from_pretrained(name, **options)
    except Exception as error:
        raise ValueError(f"{name} has no configuration that can be read: {line(error)}") from error
    described = getattr(config, "quantization_config", None)
    method = described.get("quant_method") if isinstance(described, dict) else getattr(described, "quant_method", None)
    if local and method == NAME:
        loaded: Any = load(name)
        return loaded
    cls = model_class({"architectures": config.architectures or []}, Path(name))
    cls = cls if modules is None else modules.model_class(config, cls)
    if method == METHOD:
        folder = name if local else snapshot_download(name, allow_patterns=["*.json", "*.safetensors"])
        return load_pack_quantized(Path(folder), cls)
    if local and method is not None:
        raise ValueError(f"{name} is quantised by {method}: give the model it was made from")
    try:
        loaded = cls.from_pretrained(name, use_safetensors=True, output_loading_info=True, **options)
    except OSError as error:
        raise OSError(line(error)) from error
    except Exception as error:  # whatever `transformers` makes of files that anyone may have written
        raise ValueError(f"{name}: the weights do not fit the configuration: {line(error)}") from error
    model, info = loaded
    if info["missing_keys"]:
        raise ValueError(
            f"{name} lacks {len(info['missing_keys'])} weights, {sorted(info['missing_keys'])[0]} among them"
        )
    return model


def check_tokenizer(tokenizer: PreTrainedTokenizerBase | None, model: PreTrainedModel, name: str) -> None:
    """Check that there is a tokenizer whose tokens are all in the vocabulary of the model.

    Raises:
        ValueError: There is none, or it has more tokens.
    """
    if tokenizer is None:
        raise ValueError(f"{name} has no tokenizer, which texts need")
    if KINDS.get(model.main_input_name, "text") == "text":
        embedding: Any = model.get_input_embeddings()
        vocabulary = embedding.num_embeddings
    else:  # the model only writes texts
        vocabulary = getattr(model.config, "vocab_size", len(tokenizer))
    if len(tokenizer) > vocabulary:
        raise ValueError(f"the tokenizer of {name} has {len(tokenizer)} tokens, the model {vocabulary}")


def _below_a_folder(path: Path) -> bool:
    """Whether a path names something in a folder that is here, and so no model on the hub."""
    return path.parent != Path() and path.parent.is_dir()
