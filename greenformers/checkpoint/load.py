"""Read a network that was changed or not, or raise the reason why not; never return one with missing weights."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import nn
from transformers import PreTrainedModel

from greenformers.checkpoint.description import NAME, STRUCTURE, Description
from greenformers.checkpoint.files import check_complete, check_local, check_weights, line, model_class, read_json
from greenformers.checkpoint.pack_quantized import METHOD, load_pack_quantized
from greenformers.checkpoint.place import MISSING, place, settle


def load(folder: str | Path, cls: type[PreTrainedModel] | None = None, into: nn.Module | None = None) -> nn.Module:
    """Read a network that `save` or `save_pretrained` wrote, as its class builds it too, or in `pack-quantized` layout.

    Args:
        folder: A local folder.
        cls: Class of `transformers`; by default the one that the configuration names.
        into: For a network that is not of `transformers`, the dense network, which is changed in place.

    Returns:
        The network, in evaluation mode; `into` if given.

    Raises:
        FileNotFoundError: There is no such folder, or it has no weights in safetensors.
        ValueError: The files are damaged, foreign, quantised by another library, or do not fit each other.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    check_weights(folder)
    if into is not None:
        return _load_into(into, folder)
    config = read_json(folder / "config.json")
    check_local(config, folder)
    described = config.get("quantization_config")
    if isinstance(described, dict) and described.get("quant_method") == METHOD:
        return load_pack_quantized(folder, cls or model_class(config, folder))
    if described is not None:
        if not isinstance(described, dict) or described.get("quant_method") != NAME:
            raise ValueError(f"{folder / 'config.json'} does not describe a network of ours, but {described!r:.60}")
        Description.read(described)
    try:
        loaded: Any = (cls or model_class(config, folder)).from_pretrained(
            folder, output_loading_info=True, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except OSError:
        raise
    except Exception as error:  # whatever `transformers` makes of files that anyone may have written
        raise ValueError(f"{folder}: the weights do not fit the configuration: {line(error)}") from error
    model, info = loaded
    check_complete(info, folder)
    missing = vars(model).pop(MISSING, [])
    if missing and cls is None:  # another class may lack some of them, as with another head
        raise ValueError(f"{folder}: the network has no {sorted(missing)[0]!r}, one of {len(missing)} changed parts")
    return model


def _load_into(model: nn.Module, folder: Path) -> nn.Module:
    missing = place(model, Description.read(read_json(folder / STRUCTURE)))
    if missing:
        raise ValueError(f"{folder}: the network has no {missing[0]!r}, one of {len(missing)} changed parts")
    try:
        load_model(model, folder / "model.safetensors")
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(f"{folder}: the weights do not fit the network: {line(error)}") from error
    settle(model)
    return model.eval()
