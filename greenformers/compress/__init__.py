"""Application of changes to a trained network: the function `compress`, and the command that judges its results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase

    from greenformers.changes import Change
    from greenformers.changes._report import CompressionReport

__all__ = ["compress"]


def compress(
    model: "nn.Module",
    recipe: "float | str | Path | Change | Sequence[Change]" = 0.5,
    *,
    texts: "Sequence[str] | Sequence[tuple[str, str]] | None" = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    examples: "Sequence[Mapping[str, Tensor]] | None" = None,
    calibration: Iterable[Any] | None = None,
    teacher: "nn.Module | None" = None,
    example: Any = None,
    loss: "Callable[[nn.Module, Any], Tensor] | None" = None,
    length: int | None = None,
    memory: float = 2**30,
    seed: int = 0,
    folder: Path | None = None,
    teacher_cache: Path | None = None,
    progress: Callable[[str, float], None] = lambda *_: None,
) -> "CompressionReport":
    """Change a trained network in place by a recipe, an ordered list of changes.

    >>> compress(model, 0.5)  # low rank, half of the weights
    >>> compress(model, [LowRank(keep=0.5), Heal(300), Int8()], texts=texts, tokenizer=tokenizer)

    All changes are checked before the first one is applied. A change that raises leaves the network as it was after the
    changes before it.

    Args:
        model: Any network; training on texts needs a model of transformers. In a SentenceTransformer the transformer is
            changed, and its embeddings are compared as the other modules pool them.
        recipe: Changes, or a TOML file of them; a number is the share of the weights that low rank keeps.
        texts: Texts to calibrate with and to learn from, for an encoder-decoder pairs of source and target; they are
            split by `seed` where the recipe does both.
        tokenizer: Tokenizer of the model, for texts; by default that of a SentenceTransformer.
        examples: Images, recordings or other inputs in place of texts, as the Trainer takes them: mappings of keyword
            arguments of the model, each without the dimension of a batch.
        calibration: Batches to calibrate with, in place of texts: mappings of keyword arguments, sequences of
            positional ones, or tensors.
        teacher: Network to learn from; by default the model as it is before the first change.
        example: A batch for budgets of FLOPs or latency; by default the first one to calibrate with.
        loss: Loss of a model on a batch, for solvers with a loss.
        length: Longest text in tokens; by default 128, or the max_seq_length of sentence-transformers.
        memory: Bytes of calibration statistics held at once.
        seed: Seed of random numbers and of the order of the texts.
        folder: Folder for checkpoints of training; a call that was stopped continues from them.
        teacher_cache: Folder that keeps what the teacher gives to each example: it is asked once, not at every step,
            and by no further call with the same teacher and examples.
        progress: Function that is called with the name of a step and the share of it that is done.

    Returns:
        The report of every change.

    Raises:
        ValueError: A change cannot be applied to this network, or in this order; values are out of range; texts,
            batches or weights cannot be used.
        OSError: The recipe cannot be read.
    """
    from greenformers.compress.apply import compressed

    return compressed(
        model, recipe, texts=texts, tokenizer=tokenizer, examples=examples, calibration=calibration, teacher=teacher,
        example=example, loss=loss, length=length, memory=memory, seed=seed, folder=folder, teacher_cache=teacher_cache,
        progress=progress,
    )  # fmt: skip
