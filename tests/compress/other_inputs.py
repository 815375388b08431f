"""Folders with models of images, recordings and two languages, tiny ones, and examples of each as files."""

import math
import wave
from pathlib import Path

import numpy as np
import torch
from models import sentences, tokenizer
from PIL import Image
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    WhisperFeatureExtractor,
)
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from zoo import network

NUMBERS = ["one", "two", "three", "four", "five"]


def write(model: PreTrainedModel, folder: Path, *parts: object) -> Path:
    """A model that tells its inputs apart, and what makes these."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() == 2 else 1)
    model.save_pretrained(folder)
    for part in parts:
        part.save_pretrained(folder)  # type: ignore[attr-defined]
    return folder


def models(root: Path) -> None:
    """One of each kind."""
    write(network("t5", eos_token_id=3), root / "t5", tokenizer("bert"))
    features = ViTImageProcessorPil(size={"height": 20, "width": 20})
    names = {"label2id": {"dark": 0, "light": 1, "mixed": 2}, "id2label": {0: "dark", 1: "light", 2: "mixed"}}
    write(network("vit", **names), root / "vit", features)
    write(network("vit", "ViTModel"), root / "ViTModel", features)
    numbers = Tokenizer(
        WordLevel({word: n for n, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *NUMBERS])}, unk_token="<unk>")
    )
    numbers.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = PreTrainedTokenizerFast(tokenizer_object=numbers, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    whisper = network(
        "whisper", decoder_start_token_id=1, begin_suppress_tokens=None, eos_token_id=2, max_source_positions=50
    )
    write(whisper, root / "whisper", words, WhisperFeatureExtractor(feature_size=16, chunk_length=1))
    vocabulary = root / "letters.json"
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *sorted(set("".join(NUMBERS)))]
    vocabulary.write_text("{" + ", ".join(f'"{letter}": {n}' for n, letter in enumerate(letters)) + "}")
    heard = Wav2Vec2FeatureExtractor(return_attention_mask=True)
    write(network("wav2vec2"), root / "wav2vec2", heard, Wav2Vec2CTCTokenizer(str(vocabulary)))
    named = {"label2id": {"high": 0, "low": 1}, "id2label": {0: "high", 1: "low"}, "classifier_proj_size": 8}
    write(network("wav2vec2", "Wav2Vec2ForSequenceClassification", **named), root / "heard", heard)


def examples(root: Path) -> None:
    """Captions with what they are in another language, pictures in folders of classes, words that are spoken."""
    rows = [f"{a}\t{b}" for a, b in zip(sentences(24), sentences(24, 1), strict=True)]
    (root / "pairs.tsv").write_text("\n".join(["source\ttarget", *rows]) + "\n")
    draw = np.random.default_rng(0)
    for part, count in (("train", 5), ("test", 4)):
        for name, low, high in (("dark", 0, 90), ("light", 160, 255), ("mixed", 0, 255)):
            (root / "images" / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(low, high, (23, 26, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / "images" / part / name / f"{number}.png")
    (root / "plain").mkdir()
    for path in (root / "images" / "test").rglob("*.png"):
        (root / "plain" / f"{path.parent.name}{path.name}").write_bytes(path.read_bytes())
    (root / "said").mkdir()
    for part, count in (("train", 12), ("test", 6)):
        lines = ["path\ttext"]
        for number in range(count):
            words = [NUMBERS[(number + place) % 5] for place in range(1 + number % 3)]
            tone(root / "said" / f"{part}{number}.wav", 200 + 40 * number, 0.1 * len(words))
            lines.append(f"{part}{number}.wav\t{' '.join(words)}")
        (root / "said" / f"{part}.tsv").write_text("\n".join(lines) + "\n")
    for name, frequency in (("high", 2000), ("low", 200)):
        (root / "tones" / name).mkdir(parents=True)
        for number in range(6):
            tone(root / "tones" / name / f"{number}.wav", frequency + 10 * number, 0.1 + 0.01 * (number % 2))


def tone(path: Path, frequency: float, seconds: float) -> None:
    """A sine at 16 kHz."""
    samples = np.sin(2 * math.pi * frequency * np.arange(int(16_000 * seconds)) / 16_000)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((20_000 * samples).astype("<i2").tobytes())
