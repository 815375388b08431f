"""The card of an export: how each runtime loads the folder, and what its files gave."""

from collections.abc import Sequence
from pathlib import Path

from greenformers.checkpoint.save import MARK as LIBRARY
from greenformers.checkpoint.save import marked
from greenformers.checkpoint.sentence import MODULES
from greenformers.compress.comparison import card as table
from greenformers.export.network import IDS, MASK, TYPES, Network
from greenformers.export.write import FORMATS, Checked
from greenformers.measure.record import Record

FILE = "README.md"

EXPORTED = "tags: [greenformers, exported]"
"""Line at the head of every card, by which an earlier export is recognised: it may be replaced."""

TOKENIZER = "from transformers import AutoTokenizer"
TEXTS = 'AutoTokenizer.from_pretrained(".")(["a text", "and another one"], padding=True, return_tensors="np")'


def check_target(out: Path) -> None:
    """Check that a folder is missing, empty, or an earlier export, which may be replaced.

    Raises:
        FileExistsError: It is a file, or holds anything else.
    """
    if out.exists() and not (out.is_dir() and (marked(out, EXPORTED) or not any(out.iterdir()))):
        raise FileExistsError(f"{out} exists and holds no exported model: name another folder")


def text(network: Network, folder: Path, formats: Sequence[str], checked: Checked, records: Sequence[Record]) -> str:
    """The Markdown of a card: lines of Python that work in the folder, and a table of the records.

    Args:
        network: The model that was exported.
        folder: The folder of the export, which is written but for the card.
        formats: Formats in the folder.
        checked: Differences of its files.
        records: Records of the export.
    """
    name = type(network.model).__name__
    has_tokenizer = any(folder.glob("tokenizer*"))
    parts = [
        f"---\n{LIBRARY}\n{EXPORTED}\n---",
        f"# {name}, exported",
        f"Inputs are {', '.join(f'`{given}`' for given in network.inputs)}, int64 (batch, length) of any batch and "
        f"length; the output is `{network.output}`. On padded batches of random tokens the files differed from the "
        f"model by at most {max(checked.differences.values()):.1g} of the largest output.",
    ]
    parts += [f"## {HEADINGS[form]}\n\n```python\n{_loading(form, network, has_tokenizer)}\n```" for form in formats]
    if (folder / MODULES).is_file():
        parts.append(f"## sentence-transformers\n\n{_sentences(formats)}")
    variants = list(dict.fromkeys(record.variant for record in records))
    parts.append(table(variants, records, "The model in torch, and its files in their runtimes."))
    return "\n\n".join(parts) + "\n"


HEADINGS = {"openvino": "OpenVINO", "onnx": "ONNX Runtime", "torch": "PyTorch", "program": "torch.export"}


def _loading(form: str, network: Network, has_tokenizer: bool) -> str:
    importing, tokens = (TOKENIZER, TEXTS) if has_tokenizer else ("import numpy as np", _example(network.inputs))
    names = network.inputs
    kind = type(network.model)
    home = "greenformers" if kind.__module__.startswith("greenformers.") else "transformers"
    first, rest = {
        "openvino": (
            "import openvino",
            f'model = openvino.Core().compile_model("{FORMATS[form]}", "CPU")\n'
            f"output = model({{name: tokens[name] for name in {names}}})[0]",
        ),
        "onnx": (
            "import onnxruntime",
            f'session = onnxruntime.InferenceSession("{FORMATS[form]}")\n'
            f"(output,) = session.run(None, {{name: tokens[name] for name in {names}}})",
        ),
        "torch": (
            f"import greenformers\nimport torch\nfrom {home} import {kind.__name__}",
            f'model = {kind.__name__}.from_pretrained(".")\n'
            f"output = model(**{{name: torch.from_numpy(tokens[name]) for name in {names}}}).{network.output}",
        ),
        "program": (
            "import torch",
            f'program = torch.export.load("{FORMATS[form]}").module()  # unpickles: only what you trust\n'
            f"output = program(*(torch.from_numpy(tokens[name]) for name in {names}))",
        ),
    }[form]
    return f"{first}\n{importing}\n\ntokens = {tokens}\n{rest}"


def _example(inputs: Sequence[str]) -> str:
    """Python for the tokens of a folder without a tokenizer."""
    values = {IDS: [[5, 6, 7]], MASK: [[1, 1, 1]], TYPES: [[0, 0, 0]]}
    return "{" + ", ".join(f'"{name}": np.array({values[name]})' for name in inputs) + "}"


def _sentences(formats: Sequence[str]) -> str:
    lines = ["from sentence_transformers import SentenceTransformer", ""]
    if "torch" in formats:
        lines[:0] = ["import greenformers"]
        lines += ['model = SentenceTransformer(".")']
    for form, library in (("openvino", "optimum-intel"), ("onnx", "optimum-onnx")):
        if form in formats:
            lines += [f'model = SentenceTransformer(".", backend="{form}")  # needs {library}']
    lines += ['embeddings = model.encode(["a text", "and another one"])']
    return "```python\n" + "\n".join(lines) + "\n```"
