"""How a model's examples become its inputs: tokens, pixels, features of sound; and the labels that it is to predict."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as DECODERS
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as ENCODERS

from greenformers.data import _audio as audio
from greenformers.data._corpus import Utterance
from greenformers.data._examples import Examples, Files, Images, Sounds, opened
from greenformers.data._pairs import encoded_pairs
from greenformers.data._rows import Batches, Row, Rows
from greenformers.data._tasks import OF_PAIRS, Kind, Task, classes_of, kind_of_input, task_of, tells_types
from greenformers.data._texts import Texts, batches
from greenformers.data._windows import Window, windows
from greenformers.data._words import first_tokens

SIZES: dict[Kind, int] = {"text": 16, "image": 16, "sound": 8}
"""Examples in a batch."""

AT_ONCE = 1000
"""Texts that a tokenizer is given at once."""


@dataclass(frozen=True)
class Reader:
    """Turns examples into the inputs of a model.

    Attributes:
        task: Task of the model.
        kind: Kind of input that the model reads.
        tokenizer: Tokenizer of the texts that it reads or writes.
        features: Image processor or feature extractor of `transformers`.
        length: Longest text in tokens, at most the longest that a decoder takes; for a causal language model, the
            length of a block.
        classes: Number of each class, by its name.
        start: The token that a decoder begins with.
        filler: The token that pads.
        typed: Whether the model tells the two texts of a pair apart by the types of their tokens.
    """

    task: Task
    kind: Kind
    tokenizer: PreTrainedTokenizerBase | None
    features: Any
    length: int
    classes: Mapping[str, int]
    start: int | None
    filler: int
    typed: bool

    @classmethod
    def of(
        cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, length: int, *, features: Any = None
    ) -> Self:
        """The reader of a model; it leaves the tokenizer as it is.

        Raises:
            ValueError: Examples are of no use to the model, or it has no tokenizer, image processor or feature
                extractor.
        """
        task, kind = task_of(model), kind_of_input(model)
        name = type(model).__name__
        if (kind == "text" or task in ("seq2seq", "ctc")) and tokenizer is None:
            raise ValueError(f"a {name} needs a tokenizer for its texts")
        if kind != "text" and features is None:
            needed = "an image processor" if kind == "image" else "a feature extractor"
            raise ValueError(f"a {name} needs {needed}, such as preprocessor_config.json describes")
        if task == "seq2seq" and kind == "image":
            raise ValueError(f"a {name} writes texts about images, of which there are no examples here")
        given: Any = model.config
        decoder = given.model_type in DECODERS and given.model_type not in ENCODERS
        if task in ("tagger", "answerer") and not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"a {name} needs a tokenizer that tells where in the text each token is: one of tokenizers"
            )
        if task == "classifier" and kind == "text" and decoder and getattr(given, "pad_token_id", None) is None:
            raise ValueError(
                f"a {name} reads the last token of each text that is not padding: set pad_token_id in its config.json"
            )
        if getattr(tokenizer, "is_fast", False):  # one that keeps, and saves, how the last texts were cut and padded
            tokenizer = copy.deepcopy(tokenizer)
        filler = getattr(tokenizer, "pad_token_id", None)
        length = min(length, getattr(given, "max_target_positions", None) or length)  # of a decoder by itself
        return cls(
            task, kind, tokenizer, features, length,
            classes=classes_of(model),
            start=getattr(given, "decoder_start_token_id", None),
            filler=int(filler if filler is not None else getattr(given, "pad_token_id", None) or 0),
            typed=tells_types(model, tokenizer),
        )  # fmt: skip

    @property
    def scores(self) -> bool:
        """Whether the model gives a score in place of classes, as a reranker does."""
        return self.task == "classifier" and len(self.classes) == 1

    def check(self, examples: Examples) -> None:
        """Check that examples are of the form that the model reads, and that their files can be read.

        Raises:
            ValueError: Examples are of another form, a label is none of the model's classes, or a file cannot be read.
        """
        if isinstance(examples, Texts):
            if self.task == "seq2seq" and not examples.translated:
                raise ValueError(
                    f"{examples.name}: an encoder-decoder needs a table with the columns source and target"
                )
            if self.task != "seq2seq" and examples.translated:
                raise ValueError(f"{examples.name}: source and target are for encoder-decoders, this model is none")
            if self.task != "tagger" and examples.label_kind == "tags":
                raise ValueError(f"{examples.name}: tags of words are for token classification, not for this model")
            if self.task != "answerer" and examples.label_kind == "answers":
                raise ValueError(f"{examples.name}: answers are for models of question answering, this one is none")
            if self.task == "answerer" and not examples.paired:
                raise ValueError(f"{examples.name}: question answering needs the columns question and context")
            return
        examples.check()
        if isinstance(examples, Sounds):
            self._check_lengths(examples)
        if self.task in ("seq2seq", "ctc") and not all(examples.said):
            raise ValueError(f"{examples.name}: what is said in the recordings is needed, as a corpus tells it")
        if self.task == "classifier":
            for name in sorted(set(examples.said)):
                self.number(name)

    def _check_lengths(self, sounds: Sounds) -> None:
        """See that nothing of a recording is cut off: a feature extractor of fixed length would do so silently."""
        samples = getattr(self.features, "n_samples", None)
        if samples is None:
            return
        longest = 1000 * samples // self.features.sampling_rate
        longer = [utterance.path.name for utterance in sounds.utterances if _length(utterance) > longest]
        if longer:
            raise ValueError(
                f"{sounds.name}: {len(longer)} of {len(sounds)} recordings are longer than the {longest / 1000:g} s "
                f"that the model hears, {longer[0]} among them: cut them, or leave them out"
            )

    def number(self, name: str) -> int:
        """The number of a class.

        Raises:
            ValueError: The model has no class of this name.
        """
        if name in self.classes:
            return self.classes[name]
        if name.isdecimal() and int(name) < len(self.classes):
            return int(name)
        names = ", ".join(list(self.classes)[:10])
        label = f"has the class {name!r}, which is" if name else "names no class, which would be"
        raise ValueError(f"a folder or text {label} none of the model's: {names}, or 0..{len(self.classes) - 1}")

    def rows(self, examples: Examples, *, classes: bool = False) -> Rows:
        """The examples as rows, the inputs of the network.

        Args:
            examples: Examples of the kind that the model reads.
            classes: Whether the rows of a classifier hold labels; those of an encoder-decoder always do.
        """
        filler = {"input_ids": self.filler}
        if isinstance(examples, Texts):
            rows = self._texts(examples, classes)
            return Rows(rows, filler=filler, lengths=[len(row["input_ids"]) for row in rows])
        count = len(examples)
        if isinstance(examples, Images):
            return Rows(range(count), lambda place: self._image(examples, place, classes), filler=filler)
        lengths = None if _fixed(self.features) else [_length(utterance) for utterance in examples.utterances]
        return Rows(range(count), lambda place: self._sound(examples, place, classes), filler=filler, lengths=lengths)

    def batches(self, examples: Examples) -> Sequence[Mapping[str, Any]]:
        """Batches to calibrate with: without padding where that is possible, else with the masks of the padding."""
        if isinstance(examples, Texts) and self._reads_pairs(examples):
            return Batches(self.rows(examples), SIZES["text"], exact=True)
        if isinstance(examples, Texts) and self.task != "seq2seq":
            assert self.tokenizer is not None
            return batches(examples.lines, self.tokenizer, self.task, self.length)
        return Batches(self.rows(examples), SIZES[self.kind], exact=self.kind == "sound")

    def _texts(self, texts: Texts, classes: bool) -> list[Row]:
        tokenizer: Any = self.tokenizer
        limits = {"truncation": True, "max_length": self.length}
        if self.task == "causal_lm":
            blocks = batches(texts.lines, tokenizer, self.task, self.length)
            return [_masked(row) for batch in blocks for row in batch["input_ids"]]
        if self.task == "seq2seq":
            pairs: list[Row] = []
            for source, target in texts.segments:
                row = _masked(torch.tensor(tokenizer(source, **limits)["input_ids"]))
                pairs.append({**row, **self._written(target)})
            return pairs
        rows: list[tuple[Row, int]]
        if self._reads_pairs(texts):
            rows = [(row, place) for place, row in enumerate(self._pairs(texts))]
        else:
            rows = [(_masked(torch.tensor(ids)), place) for place, ids in _ids(texts, tokenizer, limits) if ids]
        if self.task in ("tagger", "answerer") or not classes or texts.labels is None:
            return [row for row, _ in rows]
        number = float if self.scores else int
        return [{**row, "labels": torch.tensor(number(texts.labels[place]))} for row, place in rows]

    def _reads_pairs(self, texts: Texts) -> bool:
        """Whether the two texts of an example are one input: a classifier reads both, an encoder each by itself."""
        return self.task in OF_PAIRS and texts.paired

    def first_words(self, texts: Texts) -> Iterator[torch.Tensor]:
        """Yield for each token of a sentence the number of the word that it is the first token of, else -1.

        Words that are cut off, or of which the tokenizer makes nothing, have none.
        """
        tokenizer: Any = self.tokenizer
        limits = {"truncation": True, "max_length": self.length, "return_offsets_mapping": True, "verbose": False}
        for start in range(0, len(texts), AT_ONCE):
            lines = texts.lines[start : start + AT_ONCE]
            for line, spans in zip(lines, tokenizer(lines, **limits)["offset_mapping"], strict=True):
                yield torch.tensor(first_tokens(line.split(" "), spans))

    def windows(self, texts: Texts) -> tuple[Rows, list[Window]]:
        """Questions and their texts as rows, several for a text that is too long for one; and of each what it holds."""
        assert self.tokenizer is not None
        read = list(windows(self.tokenizer, texts.segments, self.length, typed=self.typed))
        rows = [_masked(window.row["input_ids"]) | window.row for window in read]
        return Rows(rows, filler={"input_ids": self.filler}, lengths=[len(row["input_ids"]) for row in rows]), read

    def cut_off(self, texts: Texts) -> int:
        """Number of examples that are longer than the longest text, so that their rest is not read."""
        if self.task == "causal_lm":  # which reads blocks of all texts, one behind the other
            return 0
        tokenizer: Any = self.tokenizer
        if self.task == "answerer":
            return sum(not window.whole for window in windows(tokenizer, texts.segments, self.length, typed=False))
        together = self._reads_pairs(texts)

        def count(*segments: str, **more: str) -> int:
            return len(tokenizer(*segments, **more, verbose=False)["input_ids"])

        def longest(segments: tuple[str, ...]) -> int:
            if together:
                return count(*segments)
            if texts.translated:
                source, target = segments
                return max(count(source), count(text_target=target))
            return max(map(count, segments))

        return sum(longest(segments) > self.length for segments in texts.segments)

    def _pairs(self, texts: Texts) -> Iterator[Row]:
        assert self.tokenizer is not None
        first, second = zip(*texts.segments, strict=True)
        for row in encoded_pairs(self.tokenizer, first, second, self.length, typed=self.typed):
            yield _masked(torch.tensor(row["input_ids"])) | {name: torch.tensor(ids) for name, ids in row.items()}

    def _written(self, text: str) -> Row:
        """The tokens that a decoder is to write, and their mask."""
        tokenizer: Any = self.tokenizer
        ids = tokenizer(text_target=text, truncation=True, max_length=self.length)["input_ids"]
        if len(ids) > 1 and ids[0] == self.start:  # the model itself puts it in front
            ids = ids[1:]
        labels = torch.tensor(ids)
        return {"labels": labels, "decoder_attention_mask": torch.ones_like(labels)}

    def _image(self, images: Images, place: int, classes: bool) -> Row:
        path = images.paths[place]
        try:
            with opened(path) as image:
                pixels = self.features(images=[image.convert("RGB")], return_tensors="pt")["pixel_values"][0]
        except OSError as error:
            raise ValueError(f"{path} is not a whole image: {error}") from error
        return {"pixel_values": pixels} | self._class(images, place, classes)

    def _sound(self, sounds: Sounds, place: int, classes: bool) -> Row:
        utterance = sounds.utterances[place]
        rate = self.features.sampling_rate
        wave = audio.read(
            utterance.path, rate=rate, start=utterance.start, end=utterance.end, channel=utterance.channel
        )
        inputs = self.features(wave.numpy(), sampling_rate=rate, return_tensors="pt")
        row = {name: x[0] for name, x in inputs.items()}
        if self.task == "seq2seq":
            return row | dict(self._written(utterance.text))
        return row | self._class(sounds, place, classes)

    def _class(self, examples: Files, place: int, classes: bool) -> dict[str, torch.Tensor]:
        labelled = classes and self.task == "classifier"
        return {"labels": torch.tensor(self.number(examples.said[place]))} if labelled else {}


def _ids(texts: Texts, tokenizer: Any, limits: Mapping[str, Any]) -> list[tuple[int, list[int]]]:
    """The tokens of every text, with the place of its example."""
    flat = [(place, text) for place, segments in enumerate(texts.segments) for text in segments]
    if not getattr(tokenizer, "is_fast", False):
        return [(place, tokenizer(text, **limits)["input_ids"]) for place, text in flat]
    # Together they take a sixth of the time, but of all at once everything else that a tokenizer gives is held too.
    pieces = (flat[start : start + AT_ONCE] for start in range(0, len(flat), AT_ONCE))
    return [
        (place, ids) for piece in pieces
        for (place, _), ids in zip(piece, tokenizer([text for _, text in piece], **limits)["input_ids"], strict=True)
    ]  # fmt: skip


def _masked(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _length(utterance: Utterance) -> int:
    """Duration of an utterance, in milliseconds."""
    end = audio.seconds(utterance.path) if utterance.end is None else utterance.end
    return round(1000 * (end - utterance.start))


def _fixed(features: Any) -> bool:
    """Whether a feature extractor brings every recording to one length, as those of Whisper and AST do."""
    return hasattr(features, "nb_max_frames") or hasattr(features, "max_length")
