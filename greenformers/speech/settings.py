"""Settings of training a speech recogniser; the default network is that of Cahyawijaya 2021."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

from greenformers.train.setting import setting
from greenformers.train.settings import Training

if TYPE_CHECKING:
    from greenformers.speech.recordings import Recordings
    from greenformers.train.task import Task


@dataclass(frozen=True)
class SpeechSettings(Training):
    """Settings of a run on speech: corpus, network and training."""

    unused: ClassVar[tuple[str, ...]] = ("memory", "pooling", "micro_batches", "stages")

    corpus: str = setting(".", "Folder of the corpus, or a manifest (.tsv, .csv, .jsonl: path and text) to train on.")
    layout: str | None = setting(
        None,
        "Layout of the corpus: manifest, aishell, hkust, librispeech, common_voice or spoken_digits; by default "
        "recognised from what the folder holds.",
    )
    valid: str | None = setting(None, "Manifest to validate on, where the corpus is a manifest.")
    test: str | None = setting(None, "Manifest to test on, where the corpus is a manifest.")
    held_out: str | None = setting(None, "spoken_digits: a speaker who is in the test split only.")
    longest: float = setting(20.0, "Longest training utterance in seconds; longer ones are left out.")
    rate: int = setting(16_000, "Sampling rate in Hz; sound of another rate is resampled.")
    n_fft: int = setting(320, "Length of the Fourier transform, in samples.")
    window: int = setting(320, "Length of a frame, in samples.")
    hop: int = setting(160, "Distance from frame to frame, in samples.")
    channels: int = setting(64, "Channels of the first two convolutions; the other two have twice as many.")
    ctc_weight: float = setting(0.0, "Share of CTC in the loss, for a faster start, and in later searches.")
    augment: bool = setting(False, "SpecAugment: mask stretches of frequencies and frames.")
    speed: bool = setting(False, "Speed perturbation: a third of the recordings slower, a third faster, by a tenth.")
    noise: bool = setting(False, "Add noise to every second recording, 5 to 30 dB below it.")
    speechless: float = setting(
        0.0, "Share of the recordings that silence or noise without words takes the place of, below 1."
    )
    valid_transcripts: int = setting(
        100,
        "Most validation recordings that are transcribed, greedily, at each evaluation, for their character and word "
        "error rates; none with shard. Those of the end calibrate the confidence of words.",
    )
    patience_by: str = setting("loss", "Score that patience goes by: loss, cer or wer.")

    rank: int = setting(100, "Rank of the low-rank linear layers of lrt.")
    hidden: int = setting(512, "Width d of the network.")
    decoder_layers: int | None = setting(4, "Layers of the decoder.")
    heads: int = setting(8, "Number of heads, a divisor of the width.")
    feed_forward: int = setting(2048, "Width f of the feed-forward blocks.")
    position: str = setting(
        "sinusoidal",
        "Position encoding, a file of greenformers/position: learned, sinusoidal, rotary, alibi, t5, shaw or huang; or "
        "none.",
    )
    dropout: float = setting(0.1, "Dropout after the embedding and each block.")
    batch: int = setting(16, "Utterances a step, of all processes together.")
    learning_rate: float = setting(5e-4, "Highest learning rate.")

    def recordings(self, only: str | None = None) -> "Recordings":
        """The recordings of the corpus.

        Args:
            only: Split that is looked at; None for all that training needs.

        Raises:
            ValueError, OSError: As by `greenformers.speech.recordings.recordings`, or no corpus is named.
        """
        from greenformers.data._corpus import layouts_of
        from greenformers.speech.recordings import recordings

        if self.corpus == SpeechSettings.corpus and self.layout is None and not layouts_of(Path(self.corpus)):
            raise ValueError("corpus must be named: without it the current folder is taken, which holds none")
        return recordings(
            Path(self.corpus), self.layout, rate=self.rate, longest=self.longest,
            valid=self.valid, test=self.test, held_out=self.held_out, only=only,
        )  # fmt: skip

    def task(self) -> "Task":  # noqa: D102
        from greenformers.speech.augment import Augmentation
        from greenformers.speech.features import Spectrogram
        from greenformers.speech.front_end import POOLED
        from greenformers.speech.objective import METRICS, Speech
        from greenformers.speech.vocabulary import check_covers, vocabulary, vocabulary_of
        from greenformers.train.shard import is_sharded
        from greenformers.train.task import MODEL, Task

        self.check_unused()
        if self.patience is None and self.patience_by != SpeechSettings.patience_by:
            raise ValueError(f"patience_by goes with patience, which is not given; got {self.patience_by!r}")
        if self.patience_by not in METRICS:
            raise ValueError(f"patience_by must be one of {', '.join(METRICS)}, got {self.patience_by!r}")
        spectrogram = Spectrogram(rate=self.rate, n_fft=self.n_fft, window=self.window, hop=self.hop)
        augmentation = Augmentation(speed=self.speed, noise=self.noise, speechless=self.speechless)
        self.sizes()  # what was mistyped is said before all recordings are looked at
        sounds = self.recordings()
        # The decoder has as many positions for characters.
        positions = int(self.longest * self.rate / self.hop) // POOLED + 2
        if self.init is None:
            tokenizer = vocabulary(sounds.texts(), max_length=positions)
        else:
            tokenizer = vocabulary_of(Path(self.init) / MODEL)
            self._check_start(Path(self.init) / MODEL / "config.json")
            check_covers(tokenizer, sounds.texts())
        check_covers(
            tokenizer,
            sounds.texts("valid"),
            of="the validation split",
            source="training" if self.init is None else "init",
        )
        objective = Speech(
            sounds,
            tokenizer,
            spectrogram,
            augment=self.augment,
            augmentation=augmentation,
            longest=positions,
            # The search calls parts of the network, whose sharded weights are whole inside the network's call alone.
            transcripts=0 if is_sharded(self.shard) else self.valid_transcripts,
            metric=self.patience_by,
            sizes={"channels": self.channels, "ctc_weight": self.ctc_weight},
        )
        if cut := objective.cut():
            warnings.warn(
                f"{cut} of {objective.size('train')} training texts have more than {positions - 1} characters, of "
                "which no more are learned: a smaller hop has room for them",
                stacklevel=2,
            )
        return Task(objective, tokenizer, self.start())

    def _check_start(self, path: Path) -> None:
        """Warn where a layer of CTC is left behind.

        Raises:
            ValueError: The network that training starts from reads other features.
        """
        from greenformers.checkpoint.files import read_json

        before = read_json(path)
        for name in ("rate", "n_fft", "window", "hop"):
            if before.get(name, getattr(self, name)) != getattr(self, name):
                raise ValueError(f"{name} must be {before[name]}, that of the run in init; got {getattr(self, name)}")
        if before.get("ctc_weight") and not self.ctc_weight:
            warnings.warn("the run in init was trained with CTC, which is left out with ctc_weight 0", stacklevel=3)

    @staticmethod
    def networks() -> ModuleType:  # noqa: D102
        from greenformers.speech import model

        return model
