"""The costs of a compressed model beside the dense one's: size, FLOPs, latency, memory, energy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from greenformers.checkpoint.load import line
from greenformers.measure.costs import Subject, costs
from greenformers.measure.energy_of import energy_of
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record
from greenformers.solve.loss import output

METERED = ("latency", "peak_memory_inference", "flops")
BATCH, REPEATS = 8, 20


def measured(
    models: Mapping[str, PreTrainedModel],
    sizes: Mapping[str, int],
    lengths: Sequence[int],
    *,
    benchmark: str = "compress",
    vocabulary: int,
    batch: int = BATCH,
    repeats: int = REPEATS,
    country: str = "USA",
    about: dict[str, Any],
) -> list[Record]:
    """Records of each model, on batches of random texts of each length, without padding.

    Args:
        models: by variant, all on one device.
        sizes: bytes of each on disk.
        lengths: in tokens.
        benchmark: name of the records.
        vocabulary: how many token ids to draw from.
        batch: texts at once.
        repeats: timed runs of each, interleaved.
        country: whose electricity: a 3-letter ISO code.
        about: context of the records.
    """
    records = []
    for name, model in models.items():
        whole = {"parameters": float(parameters(model)), "size": sizes[name] / 2**20}
        records += [
            Record.of(metric, value, benchmark=benchmark, variant=name, source="counted", context=about)
            for metric, value in whole.items()
        ]
    for length in lengths:
        setting = {"length": length, "batch": batch}
        subjects = {name: Subject(model, on_tokens(model, length, vocabulary, batch)) for name, model in models.items()}
        found = costs(subjects, METERED, benchmark=benchmark, setting=setting, repeats=repeats, about=about)
        by_name = {record.variant: record.value for record in found if record.metric == "latency"}
        records += found
        calls = {name: subject.forward for name, subject in subjects.items()}
        for name, (spent, source) in energy_of(calls, by_name, country).items():
            records.append(
                Record.of(
                    "energy_inference", spent, benchmark=benchmark, variant=name, setting=setting, source=source,
                    context=about,
                )
            )  # fmt: skip
    return records


def on_tokens(model: PreTrainedModel, length: int, vocabulary: int, size: int = BATCH) -> Callable[[], Tensor]:
    """A call of a model on a batch of random tokens, always the same, to a number that can be differentiated."""
    batch = tokens(model, length, vocabulary, size)
    return lambda: output(model(**batch), batch).sum()


def tokens(model: PreTrainedModel, length: int, vocabulary: int, size: int = BATCH) -> dict[str, Tensor]:
    """A batch of random tokens (size, length), always the same."""
    ids = torch.randint(0, vocabulary, (size, length), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids.to(model.device)}
    if getattr(model.config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = batch["input_ids"]
    return batch


def check_length(model: PreTrainedModel, length: int) -> None:
    """See that a model takes so many tokens, before the work and not after it."""
    if length:
        try:
            with torch.inference_mode():
                on_tokens(model, length, vocabulary=1, size=1)()
        except Exception as error:  # whatever networks raise that take no tokens, or fewer
            raise ValueError(
                f"the model cannot be run on {length} tokens, see --length and --lengths: {line(error)}"
            ) from error
