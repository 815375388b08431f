"""The wall to accelerate: what this package uses of it and accelerate does not promise to keep stands only here.

`tests/packaging/test_walls.py` asks for every name.
"""

import sys


def forget_group() -> None:
    """Forget who is in the group of all processes: it is looked for anew when it is needed next.

    A training that ran in one process alone has noted that there are no others. It uses
    `AcceleratorState._reset_state`, as transformers does before each training; `TrainingArguments` that are made and
    thrown away would take its place.
    """
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
