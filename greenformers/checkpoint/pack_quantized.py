"""The layout "pack-quantized" of compressed-tensors, in which other libraries read linear layers of few bits.

Of a weight (m, n) of N bits, s (q - z), G grids in a row:

| tensor | holds | shape |
|---|---|---|
| `weight_packed` | q, each row as one stream of bits, the first one lowest | (m, n N / 32) int32 |
| `weight_scale` | s | (m, G), or (1,) of the whole weight |
| `weight_zero_point` | z, each column as one stream of bits | (m N / 32, G) int32 |
| | of the whole weight z - 2^(N - 1) | (1,) int8 |
| `weight_shape` | m, n | (2,) int64 |

Symmetric grids have no `weight_zero_point`: z is 2^(N - 1). Numbers of 2, 4 and 8 bits, of which none lies in two
words, lie so in every version of the layout; others do not.
"""

import copy
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from greenformers.changes._bits_layers import BitsLinear, Packed
from greenformers.changes._coded import coded, opened
from greenformers.checkpoint.description import Description
from greenformers.checkpoint.files import check_complete, check_weights, line, read_json
from greenformers.checkpoint.place import MISSING
from greenformers.checkpoint.structure import changes_of, mark
from greenformers.solve.bit_packing import pack, packed_width, unpack
from greenformers.solve.grid import Form, Grid, unit_of

METHOD, FORMAT = "compressed-tensors", "pack-quantized"

BITS = (2, 4, 8)

STRATEGIES = {"group": "group", "row": "channel", "tensor": "tensor"}
"""Its word for what has a grid of its own."""

WORD = 4
"""Bytes of a word."""

_BITS = " or ".join(map(str, BITS))

TENSORS = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape")


def tensors_of(held: Packed) -> dict[str, Tensor]:
    """The tensors of a packed weight."""
    form, bits = held.form, int(held.form.bits)
    scale = held.grid.scale
    tensors = {
        "weight_packed": _words(held.packed[:, : -(-held.n * bits // 8)]),
        "weight_scale": scale.flatten() if form.per == "tensor" else scale,
        "weight_shape": torch.tensor([held.m, held.n]),
    }
    if held.zero is not None and form.per == "tensor":
        tensors["weight_zero_point"] = (held.zero.flatten().int() - 2 ** (bits - 1)).to(torch.int8)
    elif held.zero is not None:
        rows = pack(held.zero.T, bits)[:, : -(-held.m * bits // 8)]
        tensors["weight_zero_point"] = _words(rows).T.contiguous()
    return tensors


def held_of(tensors: Mapping[str, Tensor], path: str) -> Packed:
    """The packed weight of tensors, whose sizes say what its form is.

    Steps that are not numbers of float16 times a power of 2 are rounded to such.

    Raises:
        ValueError: Tensors are missing, or their sizes and values do not fit each other.
    """
    missing = [name for name in ("weight_packed", "weight_scale", "weight_shape") if name not in tensors]
    if missing:
        raise ValueError(f"{path} lacks {missing[0]}")
    words, scale, zero = tensors["weight_packed"], tensors["weight_scale"], tensors.get("weight_zero_point")
    shape = tensors["weight_shape"].flatten().tolist()
    if len(shape) != 2:
        raise ValueError(f"weight_shape of {path} must be two sizes, got {shape}")
    m, n = (int(side) for side in shape)
    bits = [bits for bits in BITS if words.shape == (m, -(-n * bits // 32))]
    if m < 1 or n < 1 or words.dtype != torch.int32 or len(bits) != 1:
        raise ValueError(f"{path}: a weight of {m}x{n} in {_size(words)} words is none of {_BITS} bits")
    # Of a weight of one row the tensors have the same sizes, be the step that of the row or of the whole.
    if scale.numel() == 1 and (m > 1 or zero is None or zero.dtype == torch.int8):
        scale, form = scale.reshape(1, 1), Form(bits[0], "tensor", symmetric=zero is None)
    elif scale.ndim == 2 and len(scale) == m and n % scale.shape[1] == 0:
        per, group = ("row", n) if scale.shape[1] == 1 else ("group", n // scale.shape[1])
        form = Form(bits[0], per, group, zero is None)
    else:
        raise ValueError(f"{path}: {_size(scale)} steps are none of a weight of {m}x{n}")
    scale = scale.float()
    if not bool((scale.isfinite() & (scale > 0)).all()):
        raise ValueError(f"weight_scale of {path} must be above 0 and finite")
    unit = unit_of(scale)
    z = None if zero is None else _zero(zero, form, m, path, scale.shape[1])
    return Packed.of(_numbers(words, bits[0], n), Grid(form, unit, (scale / unit).half(), z))


def _zero(zero: Tensor, form: Form, m: int, path: str, grids: int) -> Int[Tensor, "m G"]:
    bits = int(form.bits)
    fits = zero.numel() == 1 if form.per == "tensor" else zero.shape == (-(-m * bits // 32), grids)
    if not fits or zero.is_floating_point():
        raise ValueError(f"weight_zero_point of {path} does not fit its steps: {_size(zero)}")
    if form.per == "tensor":
        return (zero.int() + 2 ** (bits - 1)).to(torch.uint8).reshape(1, 1)
    return _numbers(zero.int().T, bits, m).T.contiguous()


def _size(x: Tensor) -> str:
    return "x".join(map(str, x.shape))


def _words(packed: Int[Tensor, "m bytes"]) -> Int[Tensor, "m words"]:
    return F.pad(packed, (0, -packed.shape[1] % WORD)).contiguous().view(torch.int32)


def _numbers(words: Int[Tensor, "m words"], bits: int, n: int) -> Int[Tensor, "m n"]:
    bytes_ = words.contiguous().view(torch.uint8)
    return unpack(F.pad(bytes_, (0, max(0, packed_width(n, bits) - bytes_.shape[1]))), bits, n)


def check_layout(model: PreTrainedModel) -> None:
    """Check that a network is that of its class but for weights of few bits that the layout can hold.

    Raises:
        ValueError: It is not.
    """
    linear = _linear(model)
    if not linear:
        raise ValueError(f"{METHOD} holds layers of few bits, and there is no linear layer of few bits: see --bits")
    paths = {path for path, _ in coded(model, Packed)}
    others = [change.name() for change in changes_of(model) if not set(change.replaced(model)) <= paths]
    if others:
        raise ValueError(f"{METHOD} holds no network of other layers than its class has, as {others[0]} has left")
    with torch.device("meta"):
        skeleton = type(model)(copy.deepcopy(model.config))
    for path, layer in linear:
        held = layer.held
        why = None
        kind = type(skeleton.get_submodule(path))
        if kind is not nn.Linear:
            why = f"it is a {kind.__name__} of transformers, and the layout holds linear layers"
        elif held.form.bits not in BITS:
            why = f"the layout holds {_BITS} bits, and it has {held.form.bits:g}"
        elif held.form.per == "group" and held.n % held.form.group_of(held.n):
            why = f"groups of {held.form.group} do not divide its {held.n} inputs"
        elif held.inputs is not None:
            why = "its inputs have scales of their own, as awq leaves them"
        elif held.rounds_inputs:
            why = "it rounds its inputs"
        elif held.left is not None:
            why = "a product of two narrow weights is added to it"
        if why is not None:
            raise ValueError(f"{METHOD} cannot hold {path}: {why}")
    forms = {_form(layer.held) for _, layer in linear}
    if len(forms) > 1 and not all(form.symmetric for form in forms):
        raise ValueError(f"layers of {len(forms)} forms must be symmetric: of {METHOD} transformers reads no others")


def _linear(model: nn.Module) -> list[tuple[str, BitsLinear]]:
    """The packed linear layers, but for those that share their weight with an embedding."""
    layers = coded(model, Packed)
    tied = {id(layer.held) for _, layer in layers if not isinstance(layer, BitsLinear)}
    return [(path, layer) for path, layer in layers if isinstance(layer, BitsLinear) and id(layer.held) not in tied]


def save_pack_quantized(model: PreTrainedModel, folder: Path) -> None:
    """Write a network in the layout; experts, embeddings, and heads that share their weight, as floating-point numbers.

    Raises:
        ValueError: Raised as by `check_layout`, or weights have other names in files.
        OSError: A file cannot be written.
    """
    check_layout(model)
    layers = _linear(model)
    dense = copy.deepcopy(model)
    opened(dense, Packed)
    mark(dense)
    vars(dense).pop("hf_quantizer", None)  # which would write its own weights
    weights = dense.state_dict()
    for path, layer in layers:
        del weights[f"{path}.weight"]
        weights |= {f"{path}.{name}": x for name, x in tensors_of(layer.held).items()}
    names = {*weights}
    dense.save_pretrained(folder, state_dict=weights)
    _check_names(dense, names, folder)
    file = folder / "config.json"
    config = read_json(file) | {"quantization_config": _config(dense, layers)}
    file.write_text(json.dumps(config, indent=2) + "\n")


def _check_names(model: nn.Module, names: Collection[str], folder: Path) -> None:
    """Check that weights were written under their own names.

    Raises:
        ValueError: They were not: beside packed weights transformers does not find them again, as Mixtral's experts.
    """
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            other = next((name for name in file.keys() if name not in names), None)  # noqa: SIM118 - it is no dict
        if other is not None:
            raise ValueError(
                f"{METHOD} cannot hold a {type(model).__name__}, of which transformers renames weights ({other})"
            )


def _form(held: Packed) -> Form:
    """The form, with a group of all inputs of a row as what it is."""
    form = held.form
    return replace(form, per="row") if form.per == "group" and form.group >= held.n else form


def _config(dense: nn.Module, layers: Sequence[tuple[str, BitsLinear]]) -> dict[str, Any]:
    """What other libraries read: the form of each layer, by name, and the linear layers without one."""
    forms: dict[Form, list[str]] = {}
    for path, layer in layers:
        forms.setdefault(_form(layer.held), []).append(path)
    packed = {path for path, _ in layers}
    left = [path for path, part in dense.named_modules() if isinstance(part, nn.Linear) and path not in packed]
    groups = {}
    for number, (form, paths) in enumerate(forms.items()):
        weights = {
            "num_bits": int(form.bits), "type": "int", "symmetric": form.symmetric, "dynamic": False,
            "strategy": STRATEGIES[form.per], "group_size": form.group if form.per == "group" else None,
        }  # fmt: skip
        targets = ["Linear"] if len(forms) == 1 else paths
        groups[f"group_{number}"] = {
            "targets": targets, "weights": weights, "input_activations": None, "output_activations": None,
        }  # fmt: skip
    # transformers cannot place asymmetric grids that stay packed (compressed-tensors 0.20): `dequantize` makes the
    # network dense as it is read, which it would otherwise be from its first call on. It knows one form only.
    return {
        "quant_method": METHOD, "format": FORMAT, "quantization_status": "compressed", "config_groups": groups,
        "ignore": left, "kv_cache_scheme": None, "dequantize": len(forms) == 1,
    }  # fmt: skip


def load_pack_quantized(folder: Path, cls: type[PreTrainedModel]) -> PreTrainedModel:
    """Read a network in the layout; its weights stay packed.

    Raises:
        ValueError: The files are damaged, do not fit each other, or ask for what packed weights do not do.
        FileNotFoundError: There are no weights in safetensors.
    """
    files = check_weights(folder)
    described = read_json(folder / "config.json").get("quantization_config")
    _check(described, folder)
    weights = {name: x for file in files for name, x in load_file(file).items()}
    packed: dict[str, dict[str, Tensor]] = {}
    for name in [name for name in weights if name.rpartition(".")[2] in TENSORS]:
        path, _, last = name.rpartition(".")
        packed.setdefault(path, {})[last] = weights.pop(name)
    held = {path: held_of(tensors, path) for path, tensors in packed.items()}
    if not held:
        raise ValueError(f"{folder} has no weight in the layout {FORMAT}")
    weights |= {f"{path}.held.{name}": x.data for path, each in held.items() for name, x in each.named_parameters()}
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    forms = {path: each.described for path, each in held.items()}
    config.quantization_config = Description({"bits": {"forms": forms, "ties": []}}).to_dict()
    try:
        loaded: Any = cls.from_pretrained(None, config=config, state_dict=weights, output_loading_info=True)
    except Exception as error:  # whatever `transformers` makes of files that anyone may have written
        raise ValueError(f"{folder}: the weights do not fit the configuration: {line(error)}") from error
    model, info = loaded
    check_complete(info, folder)
    missing = vars(model).pop(MISSING, [])
    if missing:
        raise ValueError(f"{folder}: the network has no layer {missing[0]!r}")
    if model.can_generate() and (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model.eval()


def _check(described: Any, folder: Path) -> None:
    """Check that a configuration asks for packed weights and nothing else."""
    if not isinstance(described, dict) or described.get("quant_method") != METHOD:
        raise ValueError(f"{folder / 'config.json'} describes no network of {METHOD}")
    groups = described.get("config_groups")
    if described.get("format") != FORMAT or not isinstance(groups, dict):
        raise ValueError(f"of {METHOD} only the layout {FORMAT} is read, not {described.get('format')!r}")
    for asked in ("kv_cache_scheme", "transform_config", "sparsity_config"):
        if described.get(asked):
            raise ValueError(f"{folder / 'config.json'} asks for {asked}, which packed weights do not do")
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict) or weights.get("type", "int") != "int":
            raise ValueError(f"{folder / 'config.json'}: weights must be whole numbers (type int)")
        for asked in ("input_activations", "output_activations"):
            if group.get(asked):
                raise ValueError(f"{folder / 'config.json'} asks for {asked}, which packed weights do not do")
