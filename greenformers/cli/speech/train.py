"""`greenformers speech train`. Heavy imports are inside the command, so that --help answers at once."""

from greenformers.cli._training import training
from greenformers.speech.settings import SpeechSettings

ORDER = 10
SEVERAL = True
EXAMPLES = (
    "greenformers speech train --out runs/lrt --corpus CORPUS --variant lrt --rank 100 --ctc-weight 0.3 --augment",
)

train = training(
    SpeechSettings,
    """Train a speech recogniser on a corpus of recordings and their texts.

    The run folder OUT holds run.json (all settings), metrics.jsonl,
    curves.png, scores.json and model/; during training checkpoints/.
    A run that was stopped goes on with --resume.
    """,
)
