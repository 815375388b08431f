"""Models as people bring them, trained for some minutes on real data: T5, ViT, Whisper; and their examples as files.

Each function writes a folder: `model` as `save_pretrained` writes it, with what makes its inputs, and the examples in
the forms that `greenformers compress` reads.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from greenformers.data import load, load_images
from greenformers.data._rows import Rows
from greenformers.data._tokenizer import train_tokenizer
from greenformers.speech import spoken_digits
from greenformers.speech.spoken_digits import DIGITS
from greenformers.train.stream import generator

Batches = Callable[[int], dict[str, Tensor]]
"""The batch of a step."""


def learn(model: nn.Module, batch: Batches, steps: int, rate: float, label: str) -> None:
    """AdamW with one cycle of the learning rate."""
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    model.train()
    for step in track(range(steps), label, console=Console(stderr=True)):
        loss = model(**batch(step)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
    model.eval()


def shuffled(count: int, size: int, seed: int = 0) -> Callable[[int], list[int]]:
    """The examples of a step, epoch by epoch in another order."""

    def at(step: int) -> list[int]:
        epoch, place = divmod(step, count // size)
        order = torch.randperm(count, generator=generator(seed, epoch))
        return order[place * size : (place + 1) * size].tolist()

    return at


def t5(folder: Path, source: Path, *, steps: int) -> None:
    """English to German on Multi30k: train.tsv and test.tsv (test 2016) with source and target.

    d 192, 2 + 2 layers of 6 heads, a vocabulary of 4,000 for both languages.
    """
    pairs: Any = load("multi30k", source)
    for name, split in (("train", pairs.train), ("test", pairs.test)):
        rows = [" ".join(source.split()) + "\t" + " ".join(target.split()) for source, target in split]
        (folder / f"{name}.tsv").write_text("\n".join(["source\ttarget", *rows]) + "\n")
    words = train_tokenizer("bpe", (text for pair in pairs.train for text in pair), max_length=64, vocab_size=4000)
    torch.manual_seed(0)
    tokens: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0}
    config = T5Config(
        vocab_size=4000, d_model=192, d_kv=32, d_ff=512, num_layers=2, num_heads=6, dropout_rate=0.1, **tokens
    )
    model = T5ForConditionalGeneration(config)
    learnt = Rows([_pair(words, *pair) for pair in pairs.train], filler={"input_ids": 0})
    at = shuffled(len(learnt), 64)
    learn(model, lambda step: learnt.collate([learnt[place] for place in at(step)]), steps, 3e-3, "T5")
    model.save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")


def _pair(words: Any, source: str, target: str) -> dict[str, Tensor]:
    ids, labels = (torch.tensor(words(text, truncation=True)["input_ids"]) for text in (source, target))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def vit(folder: Path, source: Path, *, steps: int, learnt: int = 10_000, judged: int = 2_000) -> None:
    """Digits of MNIST in patches of 7 x 7: train/CLASS/*.png and test/CLASS/*.png, some of them.

    d 128, 4 layers of 4 heads.
    """
    images = load_images("mnist", source)
    for name, split, count in (("train", images.train, learnt), ("test", images.test, judged)):
        for number in range(count):
            place = folder / name / str(int(split.labels[number]))
            place.mkdir(parents=True, exist_ok=True)
            pixels = split.pixels[number].view(28, 28).numpy().astype(np.uint8)
            Image.fromarray(pixels).save(place / f"{number}.png")
    processor = ViTImageProcessor(size={"height": 28, "width": 28}, do_resize=False)
    torch.manual_seed(0)
    classes: dict[str, Any] = {"num_labels": 10}
    config = ViTConfig(
        hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, image_size=28,
        patch_size=7, num_channels=3, **classes,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    at = shuffled(len(images.train), 128)

    def batch(step: int) -> dict[str, Tensor]:
        places = at(step)
        values = images.train.pixels[places].float().view(-1, 1, 28, 28) / 255
        # As the processor has it: three channels, mean 0.5, deviation 0.5.
        return {"pixel_values": ((values - 0.5) / 0.5).expand(-1, 3, -1, -1), "labels": images.train.labels[places]}

    learn(model, batch, steps, 1e-3, "ViT")
    model.save_pretrained(folder / "model")
    processor.save_pretrained(folder / "model")


SECONDS, LEAST, MOST = 4, 2, 5
"""Of a recording at most; digits of a string."""


def whisper(folder: Path, source: Path, *, steps: int, learnt: int = 6_000, judged: int = 300) -> None:
    """Strings of two to five spoken digits: train.tsv and test.tsv of path and text, no clip in both.

    d 128, 2 + 2 layers of 4 heads, 400 frames of 80 frequencies.
    """
    said = spoken_digits.load(source, least=LEAST, most=MOST, test_strings=judged)
    for name, count in (("train", learnt), ("test", judged)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        lines = ["path\ttext"]
        for number, (wave, text) in enumerate(islice(_strings(said, name), count)):
            soundfile.write(folder / name / f"{number}.wav", wave.numpy(), spoken_digits.RATE)
            lines.append(f"{name}/{number}.wav\t{text}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    words = _digits()
    features = WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS)
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=len(words), d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512, max_source_positions=50 * SECONDS,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        begin_suppress_tokens=None, suppress_tokens=None, dropout=0.1,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    model.generation_config.update(begin_suppress_tokens=None, suppress_tokens=None, no_timestamps_token_id=None)
    waves = [soundfile.read(folder / "train" / f"{number}.wav", dtype="float32")[0] for number in range(learnt)]
    lines = (folder / "train.tsv").read_text().splitlines()[1:]
    labels = [torch.tensor(words(line.split("\t")[1])["input_ids"][1:]) for line in lines]
    heard = [features(wave, sampling_rate=16_000, return_tensors="pt")["input_features"][0] for wave in waves]
    rows = Rows(range(learnt), lambda place: {"input_features": heard[place], "labels": labels[place]})
    at = shuffled(learnt, 32)
    learn(model, lambda step: rows.collate([rows[place] for place in at(step)]), steps, 2e-3, "Whisper")
    model.save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    features.save_pretrained(folder / "model")


def _strings(said: spoken_digits.SpokenDigits, name: str) -> Iterator[tuple[Tensor, str]]:
    """Strings that fit, in their order; training ones are drawn anew in every pass."""
    for number in range(10**6):
        wave, text, _ = said.string(name, number % said.size(name), generator(5, number))
        if len(wave) <= SECONDS * spoken_digits.RATE:
            yield wave, text


def _digits() -> PreTrainedTokenizerFast:
    """A token a digit, <s> and </s> around."""
    special: Sequence[str] = ("<pad>", "<s>", "</s>", "<unk>")
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate((*special, *DIGITS))}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        model_max_length=32,
    )  # fmt: skip
