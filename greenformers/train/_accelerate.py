"""The wall to accelerate: what this package uses of it and accelerate does not promise to keep stands only here.

`tests/packaging/test_walls.py` asks for every name.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def forget_group() -> None:
    """Forget who is in the group of all processes: it is looked for anew when it is needed next.

    A training that ran in one process alone has noted that there are no others. It uses
    `AcceleratorState._reset_state`, as transformers does before each training; `TrainingArguments` that are made and
    thrown away would take its place.
    """
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)


PREPARED = ("forward", "_original_forward", "_is_accelerate_prepared")
"""What `Accelerator.prepare` leaves on a model: its call in the precision of the training, and a mark that it has."""


@contextmanager
def as_before(model: nn.Module) -> Iterator[None]:
    """A `with` block for a training, after which a model computes as before, and may be trained in another precision.

    It uses the attributes of `PREPARED`. `Accelerator.unwrap_model` with `keep_fp32_wrapper=False` would take their
    place, if it took off no wrapper but its own.
    """
    before = {name: vars(model)[name] for name in PREPARED if name in vars(model)}
    try:
        yield
    finally:
        for name in PREPARED:
            vars(model).pop(name, None)
        vars(model).update(before)
