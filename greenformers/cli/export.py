"""`greenformers export`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results

ORDER = 30
GROUP = "Make a trained model smaller and faster"
EXAMPLES = ("greenformers export small --formats torch,onnx --lengths 128 --out exported",)

MARK = "tags: [greenformers, exported]"
"""Line at the head of every model card, by which an earlier export is recognised: it may be replaced."""

SHORTEST = 16  # the files are checked on texts of at least this length, in tokens


def export(
    model: Annotated[str, typer.Argument(help="Folder of a dense or compressed model, or a name on the hub.")],
    out: Annotated[Path, typer.Option(help="Folder for the exported model.")],
    formats: Annotated[str, typer.Option(help="Formats, with commas: torch (torch.export) and onnx.")] = "torch,onnx",
    lengths: Annotated[
        str, typer.Option(help="Lengths in tokens at which latency is measured, with commas; '' for none.")
    ] = "128",
    batch: Annotated[int, typer.Option(help="Texts in a batch whose latency is measured.")] = 8,
    results: Results = None,
) -> None:
    """Export a model for torch.export and ONNX Runtime, check that its outputs stay the same, and measure its latency.

    Outputs are checked on texts of up to the longest of --lengths.
    """
    import tempfile
    from functools import partial

    from greenformers.checkpoint.pretrained import pretrained
    from greenformers.checkpoint.save import replace
    from greenformers.export.export import check_formats
    from greenformers.export.export import export as write
    from greenformers.export.latency import COMPILED, differences, latencies
    from greenformers.measure.record import append, context
    from greenformers.report.table import tables

    terminal.quiet()
    console = terminal.console()
    names = [name.strip() for name in formats.split(",") if name.strip()]
    check_formats(names)
    measured = terminal.numbers("lengths", lengths)
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    _check_target(out)
    if results is not None:
        terminal.check_writable(results)
    network, tokenizer = pretrained(model)
    network.float()  # onnxruntime has few operations of half precision for the CPU
    out.parent.mkdir(parents=True, exist_ok=True)
    longest, about = max([*measured, SHORTEST]), context(terminal.command(), 0)
    with (
        tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside,
        terminal.Steps(console) as steps,
    ):
        staged = Path(beside) / out.name
        checked = write(network, staged, names, length=longest, progress=steps)
        records = differences(checked.differences, about)
        steps("measuring", 0.0)
        records += latencies(
            network, staged, names, measured, size=batch, about=about, progress=partial(steps, "measuring")
        )
        steps("measuring", 1.0)
        if tokenizer is not None:
            tokenizer.save_pretrained(staged)
        (staged / "README.md").write_text(
            _card(type(network).__name__, names, longest, tokenizer is not None, max(checked.differences.values()))
        )
        replace(staged, out)
    terminal.show(console, tables(records, console.width))
    if measured and COMPILED not in {record.variant for record in records}:
        console.print("torch.compile cannot compile this model on this machine: its latency was not measured")
    if results is not None:
        append(results, records)
    console.print(f"model:  {out}", soft_wrap=True)


def _check_target(out: Path) -> None:
    if out.exists() and not (out.is_dir() and (_exported(out) or not any(out.iterdir()))):
        raise FileExistsError(f"{out} exists and holds no exported model: name another folder")


def _exported(folder: Path) -> bool:
    card = folder / "README.md"
    if not card.is_file():
        return False
    with card.open(encoding="utf-8", errors="replace") as file:
        return MARK in file.read(200)


def _card(name: str, formats: list[str], length: int, has_tokenizer: bool, difference: float) -> str:
    from greenformers.export.export import INPUTS

    parts = [
        f"---\n{MARK}\n---",
        f"# {name}, exported",
        "Inputs are `input_ids` and `attention_mask`, int64 (batch, length) of any batch and length; the output is the "
        f"model's logits, or its last hidden state. Up to {length} tokens a text it differed from the "
        f"model by {difference:.1g} of the largest output. In this folder:",
    ]
    if has_tokenizer:
        importing = "from transformers import AutoTokenizer"
        tokens = 'AutoTokenizer.from_pretrained(".")(["a text", "and another one"], padding=True, return_tensors="np")'
    else:
        importing = "import numpy as np"
        tokens = f'{{"{INPUTS[0]}": np.array([[5, 6, 7]]), "{INPUTS[1]}": np.array([[1, 1, 1]])}}'
    running = {
        "onnx": ("onnxruntime", 'session = onnxruntime.InferenceSession("model.onnx")\n'
                 f"(output,) = session.run(None, {{name: tokens[name] for name in {INPUTS}}})"),
        "torch": ("torch", 'program = torch.export.load("model.pt2").module()  # unpickles: only what you trust\n'
                  f"output = program(*(torch.from_numpy(tokens[name]) for name in {INPUTS}))"),
    }  # fmt: skip
    for key in formats:
        module, lines = running[key]
        parts.append(f"```python\nimport {module}\n{importing}\n\ntokens = {tokens}\n{lines}\n```")
    return "\n\n".join(parts) + "\n"
