"""Changes of a trained network, made: the verb `compress`, and the command that judges what it does."""

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
    progress: Callable[[str, float], None] = lambda *_: None,
) -> "CompressionReport":
    """Change a trained network in place by a recipe, an ordered list of changes.

    >>> compress(model, 0.5)  # low rank, half of the weights
    >>> compress(model, [LowRank(keep=0.5), Heal(300), Int8()], texts=texts, tokenizer=tokenizer)

    Whether every change can be made is looked at before the first one is. A change leaves the network as it was where
    it raises; those before it have been made.

    Args:
        model: Any network; training on texts needs a model of transformers. Of a SentenceTransformer its transformer
            is changed, judged by the other modules.
        recipe: Changes, or a TOML file of them; a number is the share of the weights that low rank keeps.
        texts: Texts to calibrate with and to learn from, of an encoder-decoder pairs of source and target; split by
            `seed` where the recipe does both.
        tokenizer: Tokenizer of the model, for texts; by default that of a SentenceTransformer.
        examples: Images, recordings or anything else in place of texts, as the Trainer takes them: mappings of keyword
            arguments of the model, each without the dimension of a batch.
        calibration: Batches to calibrate with, in place of texts: mappings of keyword arguments, sequences of
            positional ones, or tensors.
        teacher: Network to learn from; by default the model as it is before the first change.
        example: A batch for budgets of FLOPs or latency; by default the first to calibrate with.
        loss: Loss of a model on a batch, for solvers with a loss.
        length: Longest text, in tokens; by default 128, or the max_seq_length of sentence-transformers.
        memory: Bytes of calibration statistics held at once.
        seed: Seed of what is drawn, and of the order of texts.
        folder: Where checkpoints of training go; a call that was stopped goes on from them.
        progress: Called with what is being done and the share of it that is.

    Returns:
        What every change did.

    Raises:
        ValueError: A change that cannot be made of this network, or in this order; values out of range; texts,
            batches or weights that do not serve.
        OSError: A recipe that cannot be read.
    """
    from greenformers.compress.apply import compressed

    return compressed(
        model, recipe, texts=texts, tokenizer=tokenizer, examples=examples, calibration=calibration, teacher=teacher,
        example=example, loss=loss, length=length, memory=memory, seed=seed, folder=folder, progress=progress,
    )  # fmt: skip
