"""`with` blocks in which a student learns: on a device, with nothing left out, noting what it attends with."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from greenformers.changes._recorded import recordable
from greenformers.changes._student import ATTENDING, Student

DROPS, CUTS = "drop", ("apply_spec_augment",)
"""What the names of options of modules and configurations hold that leave out values or layers in training, and options
that cut out parts of a recording."""

DROPOUTS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout


@contextmanager
def on_device(device: torch.device, *models: PreTrainedModel) -> Iterator[None]:
    """A `with` block in which models are on a device; afterwards they are where they were."""
    before = [next(model.parameters()).device for model in models]
    try:
        for model in models:
            model.to(device)  # type: ignore[arg-type]
        yield
    finally:
        for model, place in zip(models, before, strict=True):
            model.to(place)  # type: ignore[arg-type]


@contextmanager
def draws_apart() -> Iterator[None]:
    """A `with` block after which random numbers go on as if it had drawn none, though the Trainer seeds all of them.

    Else whoever draws after each of several trainings of one seed would draw the same each time.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


@contextmanager
def in_full(model: PreTrainedModel) -> Iterator[None]:
    """A `with` block in which nothing is left out in training: no value (dropout), no layer, no part of a recording.

    The teacher leaves out nothing, and its outputs and states are what the student learns. Each text is read about
    once, so that there is nothing for dropout to prevent: 3 of 6 layers of MiniLM-L6 keep after 300 steps 99.1 % of
    Spearman's correlation on pairs not seen, with the dropout of its configuration 98.8 %.
    """
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    before = [
        (holder, name, value)
        for holder in [*model.modules(), *configs.values()]
        for name, value in vars(holder).items()
        if isinstance(value, bool | float) and (DROPS in name or name in CUTS or _is_share(holder, name))
    ]
    for holder, name, value in before:
        setattr(holder, name, type(value)(0))
    try:
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)


def _is_share(holder: Any, name: str) -> bool:
    """Whether a name is that of the share which a dropout module leaves out."""
    return name == "p" and isinstance(holder, DROPOUTS)


@contextmanager
def attending(student: Student) -> Iterator[None]:
    """A `with` block in which student and teacher note what they attend with, if the loss compares that.

    Raises:
        ValueError: One of them has an attention of its own, or is an encoder-decoder.
    """
    if not any(student.weights.get(name) for name in ATTENDING):
        yield
        return
    models = (student.model, student.teacher)
    for model in models:
        if getattr(model.config, "is_encoder_decoder", False):
            raise ValueError(
                f"{' and '.join(ATTENDING)} are learned by networks of one stack; {type(model).__name__} has two"
            )
    with recordable(*models):
        yield
