"""Sequences that a teacher writes itself, to learn from: distillation by sequence. Kim 2016, arXiv:1606.07947.

An encoder-decoder writes a target for each source, by beam search (section 3.2). A causal language model goes on, by
its own probabilities, from the first tokens of each text to the length of the text.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from greenformers._tensors import save_file
from greenformers.data._rows import Batches, Row, Rows
from greenformers.data._tasks import task_of
from greenformers.measure.quality import evaluating
from greenformers.train.stream import generator

BEAMS, PROMPT, SIZE = 4, 8, 16
"""Beams of an encoder-decoder, tokens of a text that a language model is given, sequences that are written at once."""

KINDS, WRITTEN = ("causal_lm", "seq2seq"), "written"


def check_writes(teacher: PreTrainedModel, rows: Rows) -> None:
    """Check that a teacher writes texts, and that there is something to begin with.

    Raises:
        ValueError: It does not, or all texts are too short.
    """
    if task_of(teacher) not in KINDS or not teacher.can_generate():
        raise ValueError(f"{type(teacher).__name__} writes no texts, of which samples could be drawn")
    if task_of(teacher) == "causal_lm" and not _begun(rows):
        raise ValueError(f"samples begin with {PROMPT} tokens of a text and go on to its length: all texts are shorter")


def _begun(rows: Rows) -> list[int]:
    return [at for at in range(len(rows)) if len(rows[at]["input_ids"]) > PROMPT]


def written(
    teacher: PreTrainedModel, rows: Rows, count: int, *, seed: int, folder: Path | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Rows:  # fmt: skip
    """Examples of which the teacher has written the text, or the target.

    Args:
        teacher: A causal language model, or an encoder-decoder.
        rows: Examples: beginnings, or sources; those that are used are drawn by seed, again and again if need be.
        count: Number of examples.
        seed: Seed of the draw and of the samples.
        folder: Folder in which finished parts are kept, to go on from.
        progress: Function that is called with the share that is done.
    """
    pairs = task_of(teacher) == "seq2seq"
    usable = list(range(len(rows))) if pairs else _begun(rows)
    source = generator(seed, 6)
    order = torch.cat([torch.randperm(len(usable), generator=source) for _ in range(-(-count // len(usable)))])
    chosen = rows.at([usable[at] for at in order[:count].tolist()])
    # As long as each other, so that nothing is padded on the side from which a decoder goes on.
    batches = Batches(chosen, SIZE, exact=not pairs)
    examples: list[Row] = []
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(batches)):
        file = None if folder is None else folder / f"{number}.safetensors"
        if file is not None and file.is_file():
            part = load_file(file)
        else:
            part = _write(teacher, batches[number], pairs, seed + number)
            if file is not None:
                unfinished = file.with_suffix(".part")
                save_file(part, unfinished)
                unfinished.replace(file)
        ends = _ends(teacher)
        examples += [_example({name: x[at] for name, x in part.items()}, ends) for at in range(len(part[WRITTEN]))]
        progress((number + 1) / len(batches))
    texts = all("input_ids" in row for row in examples)
    lengths = [len(row["input_ids"]) + len(row.get("labels", ())) for row in examples] if texts else None
    return Rows(examples, filler=rows.filler, lengths=lengths)


@torch.no_grad()
def _write(teacher: PreTrainedModel, batch: dict[str, Tensor], pairs: bool, seed: int) -> dict[str, Tensor]:
    device = next(teacher.parameters()).device
    given: dict[str, Any] = {
        name: x.to(device) for name, x in batch.items() if name not in ("labels", "decoder_attention_mask")
    }
    writer: Any = teacher
    with evaluating(teacher), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if pairs:
            longest = max(2 * batch["labels"].shape[1], 8)
            out = writer.generate(**given, num_beams=BEAMS, do_sample=False, max_new_tokens=longest)
            # What the decoder starts with it is given anyway.
            return {**{name: x.cpu() for name, x in given.items()}, WRITTEN: out[:, 1:].cpu().contiguous()}
        begun = {name: x[:, :PROMPT] for name, x in given.items()}
        more = given["input_ids"].shape[1] - PROMPT
        out = writer.generate(**begun, do_sample=True, top_k=0, top_p=1.0, temperature=1.0, max_new_tokens=more)
    return {WRITTEN: out.cpu().contiguous()}


def _ends(teacher: PreTrainedModel) -> Tensor:
    """Tokens that end a text."""
    config: Any = teacher.generation_config
    ends = config.eos_token_id
    return torch.tensor([] if ends is None else ends, dtype=torch.long).view(-1)


def _example(part: dict[str, Tensor], ends: Tensor) -> Row:
    """One example, without the padding of its part."""
    ids = part.pop(WRITTEN)
    over = torch.isin(ids[PROMPT:] if not part else ids, ends).nonzero()
    if len(over):
        ids = ids[: int(over[0]) + 1 + (0 if part else PROMPT)]
    if not part:
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if (mask := part.get("attention_mask")) is not None and "input_ids" in part:
        part = {name: x[mask.bool()] for name, x in part.items()}
    return {**part, "labels": ids, "decoder_attention_mask": torch.ones_like(ids)}
