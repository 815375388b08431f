"""`greenformers train`. Heavy imports are inside the command, so that --help answers at once."""

from greenformers.cli._training import training
from greenformers.train.settings import Settings

ORDER = 50
GROUP = "Train a model of your own"
SEVERAL = True
EXAMPLES = (
    "greenformers train --out runs/first --data digits --variant lrt --rank 16",
    "greenformers train settings.toml --out runs/first --resume",
)

train = training(
    Settings,
    """Train a network, with settings from a file, from flags, or from a file that flags override.

    The run folder OUT holds run.json (all settings), metrics.jsonl,
    curves.png, scores.json and model/, for `from_pretrained`; during
    training also checkpoints/. With --lottery-rounds, rounds/N/ holds
    the mask, metrics.jsonl and scores.json of each round.

    A run that was stopped goes on with --resume.

    For several processes, start it with `accelerate launch`
    (data-parallel or FSDP), or with torchrun and --micro-batches
    (pipeline).
    """,
)
