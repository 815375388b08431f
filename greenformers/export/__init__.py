"""A trained network in the forms of other runtimes: OpenVINO, ONNX Runtime, torch and torch.export."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from greenformers.measure.record import Record

__all__ = ["export"]


def export(
    model: "PreTrainedModel",
    folder: str | Path,
    formats: Sequence[str] = ("openvino", "onnx", "torch"),
    *,
    texts: Sequence[str] | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    loss: float | None = None,
    length: int | None = None,
    progress: Callable[[str, float], None] = lambda *_: None,
) -> "list[Record]":
    """Write a model for several runtimes, each in the form that its runtime is fast in, with a card of how to load it.

    >>> export(model, "deployed", ["openvino", "onnx"], texts=texts, tokenizer=tokenizer)

    Every file is read again by its runtime, compared with the model on padded batches, and judged on the texts. Int8
    linear layers get the ranges of their inputs from some of the texts, the others judge.

    Args:
        model: A dense or compressed model of transformers on the CPU; it is put into evaluation mode. Of one in
            half precision the checkpoint stays as it is, and all other files hold its weights in float32.
        folder: Folder for the files; an earlier export there is replaced at the end.
        formats: "openvino", "onnx" (ONNX Runtime), "torch" (the checkpoint), "program" (torch.export),
            "compressed-tensors" (layers of few bits as other libraries read them).
        texts: Texts like those that the model is for; OpenVINO and ONNX Runtime need them for int8 layers.
        tokenizer: Tokenizer of the model, saved beside the files; by default that of the folder of
            sentence-transformers, if the model was read from one.
        loss: Per cent of the model's quality that a file may lose; None for any.
        length: Longest text in tokens; by default 128, or the max_seq_length of sentence-transformers, but no more
            than the model takes.
        progress: Function that is called with the name of a step and the share of it that is done.

    Returns:
        Records of the differences, the sizes, and with texts the quality of each file.

    Raises:
        ValueError: The model, the texts or the options do not fit each other, or a file is not as good as the model.
        MissingExtraError: A library of the extra `export` is not installed.
        OSError: The folder cannot be written, or holds anything else than an export.
    """
    from greenformers.checkpoint.pooling import know
    from greenformers.checkpoint.pretrained import tokenizer_of
    from greenformers.checkpoint.sentence import sentence_folder
    from greenformers.compress.apply import length_of
    from greenformers.data._pooling import pooling_of
    from greenformers.data._texts import Texts
    from greenformers.export.deploy import deploy
    from greenformers.measure.record import context

    if texts is not None and (isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts)):
        others = (type(text).__name__ for text in texts if not isinstance(text, str))  # no text, which may be private
        kind = "none" if not texts else "a single text" if isinstance(texts, str) else f"a {next(others)} in it"
        raise ValueError(f"texts must be a list of at least one text, got {kind}")
    know(model)
    pooling = pooling_of(model)
    if pooling.in_memory:
        raise ValueError("the modules behind this transformer are in no folder: save the SentenceTransformer")
    modules = None if pooling.folder is None else sentence_folder(pooling.folder)
    if tokenizer is None and modules is not None:
        tokenizer = tokenizer_of(str(modules.transformer))
    given = None if texts is None else Texts("texts", [(text,) for text in texts], None)
    return deploy(
        model, tokenizer, Path(folder), list(formats), examples=given, loss=loss,
        length=length_of(model) if length is None else length,
        about=context("greenformers.export", 0), progress=progress,
    ).records  # fmt: skip
