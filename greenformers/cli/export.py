"""`greenformers export`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results

ORDER = 30
GROUP = "Make a trained model smaller and faster"
EXAMPLES = ("greenformers export small --texts texts.tsv --out deployed",)


def export(
    model: Annotated[str, typer.Argument(help="Folder of a dense or compressed model, or a name on the hub.")],
    out: Annotated[Path, typer.Option(help="Folder for the exported model.")],
    formats: Annotated[
        str,
        typer.Option(
            help="Formats, with commas: openvino, onnx (ONNX Runtime), torch (the checkpoint), program (torch.export) "
            "and compressed-tensors (layers of few bits as transformers and vLLM read them)."
        ),
    ] = "openvino,onnx,torch",
    texts: Annotated[
        Path | None,
        typer.Option(
            help="Texts like those that the model is for: a file .txt, .tsv, .jsonl, .parquet or .conll, "
            "a folder of them, or hf://datasets/NAME. Some calibrate int8 layers, the others judge what was written."
        ),
    ] = None,
    loss: Annotated[
        float | None,
        typer.Option(help="Per cent of the model's quality on --texts that a file may lose; else nothing is written."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Largest number of texts to calibrate int8 layers with; by default 300.")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            help="Longest text in tokens; by default 128, or the max_seq_length of a sentence-transformers folder, "
            "but no more than the model takes."
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Lengths in tokens at which latency is measured, with commas; '' for none. By default 128, or the "
            "longest input of the model."
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Texts in a batch whose latency is measured; by default 8.")] = None,
    results: Results = None,
) -> None:
    """Write a model for OpenVINO, ONNX Runtime and torch, each in the form that its runtime is fast in.

    Every file is read again by its runtime and must give what the
    model gives. Int8 layers are run in integers everywhere; to
    OpenVINO and ONNX Runtime they go with --texts.
    """
    from greenformers.checkpoint.pretrained import pretrained
    from greenformers.compress.apply import length_of
    from greenformers.data._examples import read_examples
    from greenformers.data._tasks import classes_of
    from greenformers.data._texts import Texts
    from greenformers.export import card
    from greenformers.export.deploy import deploy
    from greenformers.export.measure import COMPILED
    from greenformers.export.write import calibrates, check_formats
    from greenformers.measure.record import append, context
    from greenformers.model.positions import reach
    from greenformers.report.table import tables

    terminal.quiet()
    console = terminal.console()
    names = [name.strip() for name in formats.split(",") if name.strip()]
    check_formats(names)
    measured = None if lengths is None else terminal.numbers("lengths", lengths)
    for name, value in (("batch", batch), ("limit", limit), ("length", length)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if loss is not None and not 0 <= loss <= 100:
        raise ValueError(f"loss must be in 0..100 %, got {loss:g}")
    if limit is not None and texts is None:
        raise ValueError("--limit is of texts to calibrate with: give some (--texts)")
    if batch is not None and measured == []:
        raise ValueError("--batch is of no use with --lengths '', which measures nothing")
    terminal.check_apart(out, model, texts, results)
    card.check_target(out)
    if results is not None:
        terminal.check_results(results)
    network, tokenizer = pretrained(model, needs_tokenizer=texts is not None)
    examples = None
    if texts is not None:
        learnt, heldout = read_examples(texts, "text", classes=classes_of(network))
        examples = learnt if heldout is None else heldout
        assert isinstance(examples, Texts)
    if limit is not None and not calibrates(network, names):
        raise ValueError("--limit is of texts to calibrate int8 layers with for openvino and onnx: here are none")
    longest = reach(network)
    most = longest or 128
    measured = [min(128, most)] if measured is None else measured
    if longest is not None and length is not None and length > longest:
        raise ValueError(f"length must be at most {longest}, the longest input of the model, got {length}")
    if longest is not None and any(asked > longest for asked in measured):
        raise ValueError(f"lengths must be at most {most}, the longest input of the model, got {max(measured)}")
    with terminal.Steps(console) as steps:
        records, checked, notes = deploy(
            network, tokenizer, out, names, examples=examples, loss=loss,
            length=length or length_of(network), lengths=measured, batch=batch or 8, limit=limit or 300,
            about=context(terminal.command(), 0), progress=steps,
        )  # fmt: skip
    terminal.show(console, tables(records, console.width))
    if measured and COMPILED not in {record.variant for record in records}:
        console.print("torch.compile cannot compile this model on this machine: its latency was not measured")
    for sentence in (*card.cache_of(checked, names), *notes):
        console.print(sentence, markup=False, soft_wrap=True)
    if results is not None:
        append(results, records)
    console.print(f"model:  {out}", markup=False, soft_wrap=True)
