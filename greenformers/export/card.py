"""The card of an export: how each runtime loads the folder, and what its files gave."""

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from greenformers.checkpoint.save import EXPORTED, check_movable, marked
from greenformers.checkpoint.save import MARK as LIBRARY
from greenformers.checkpoint.sentence import MODULES
from greenformers.compress.comparison import card as table
from greenformers.data._tasks import task_of
from greenformers.export.loading import loading, loading_in_genai, loading_in_optimum, loading_of_sentences
from greenformers.export.network import Network
from greenformers.export.write import LIBRARIES, PACKED, Checked, calibrates
from greenformers.measure.record import Record
from greenformers.model.positions import reach

FILE = "README.md"


def check_target(out: Path) -> None:
    """Check that a folder is missing, empty, or an earlier export, which may be replaced.

    Raises:
        FileExistsError: It is a file, or holds anything else.
    """
    if out.exists() and not (out.is_dir() and (marked(out, EXPORTED) or not any(out.iterdir()))):
        raise FileExistsError(f"{out} exists and holds no exported model: name another folder")
    check_movable(out)


def text(
    network: Network,
    folder: Path,
    formats: Sequence[str],
    checked: Checked,
    records: Sequence[Record],
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    paired: bool,
) -> str:
    """The Markdown of a card: lines of Python that work in the folder, and a table of the records.

    Args:
        network: The model that was exported.
        folder: The folder of the export, which is written but for the card.
        formats: Formats in the folder.
        checked: Differences of its files.
        records: Records of the export.
        tokenizer: The tokenizer in the folder, if there is one.
        paired: Whether int8 layers were calibrated by pairs of texts.
    """
    name, longest = type(network.model).__name__, reach(network.model)
    length = "any length" if longest is None else f"up to {longest} tokens"
    parts = [
        f"---\n{LIBRARY}\n{EXPORTED}\n---",
        f"# {name}, exported",
        f"Inputs are {', '.join(f'`{given}`' for given in network.inputs)}, int64 (batch, length) of any batch and "
        f"{length}; {of_outputs(network.outputs)}. On padded batches of random tokens the files differed from the "
        f"model by at most {max(checked.differences.values()):.1g} of the largest output.",
        *cache_of(checked, formats),
    ]
    if calibrates(network.model, formats) and task_of(network.model) == "classifier":
        seen, other = ("pairs of texts", "single texts") if paired else ("single texts", "pairs of texts")
        parts.append(
            f"Int8 layers have the ranges of {seen}, and cut off what {other} have beyond them: export with {other} "
            "where the model is for these."
        )
    parts += [
        f"## {HEADINGS[form]}\n\n{_python(loading(form, network, tokenizer, cached=checked.cached))}"
        for form in formats
    ]
    if checked.cached:
        parts.append(f"## optimum\n\n{_python(loading_in_optimum(formats))}")
    if checked.cached and "openvino" in formats:
        lines = f"OpenVINO GenAI does not read the folder: {checked.unread}."
        parts.append(f"## OpenVINO GenAI\n\n{lines if checked.unread else _python(loading_in_genai(tokenizer))}")
    sentences = loading_of_sentences(formats)
    if sentences and (folder / MODULES).is_file():
        parts.append(f"## sentence-transformers\n\n{_python(sentences)}")
    variants = list(dict.fromkeys(record.variant for record in records))
    parts.append(table(variants, records, "The model in torch, and its files in their runtimes."))
    return "\n\n".join(parts) + "\n"


def of_outputs(names: Sequence[str]) -> str:
    """Words that name the outputs of a model."""
    listed = " and ".join(f"`{name}`" for name in names)
    return f"the output is {listed}" if len(names) == 1 else f"the outputs are {listed}"


HEADINGS = {
    "openvino": "OpenVINO",
    "onnx": "ONNX Runtime",
    "torch": "PyTorch",
    "program": "torch.export",
    PACKED: PACKED,
}


def cache_of(checked: Checked, formats: Sequence[str]) -> list[str]:
    """A sentence on the cache of a language model's files; none for other models, or where no file might keep one."""
    graphs = [HEADINGS[form] for form in formats if form in LIBRARIES]
    if checked.cached:
        others = " torch.export's takes whole texts." if "program" in formats else ""
        files = f"The file{'s' * (len(graphs) > 1)} of {' and '.join(graphs)} keep{'s' * (len(graphs) == 1)}"
        return [f"{files} the keys and values of earlier tokens: a further token costs one row.{others}"]
    if checked.whole:
        return [f"The files take whole texts, and keep no keys and values of earlier tokens: {checked.whole}."]
    return []


def _python(lines: str) -> str:
    return f"```python\n{lines}\n```"
