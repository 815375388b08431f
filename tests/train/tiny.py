"""Written data and tiny networks, for tests that train within a second."""

from pathlib import Path

import torch
from rich.console import Console

from greenformers.data import Text, train_tokenizer
from greenformers.train.causal_lm import CausalLM
from greenformers.train.seq2seq import Seq2Seq
from greenformers.train.stream import Numbered

QUIET = Console(quiet=True)

VERSE = "to be or not to be that is the question\nwhether tis nobler in the mind to suffer\n"
TEXT = Text("written", VERSE * 20, VERSE * 3, VERSE * 2)

# Settings of the smallest run; heads 4, so that the generator of replaced token detection is a quarter.
SMALL = {
    "tokenizer": "characters", "length": 16, "hidden": 12, "heads": 4, "feed_forward": 20, "layers": 1,
    "steps": 3, "batch": 4, "rank": 2,
}  # fmt: skip
# The same as sizes of a configuration.
SIZES = {
    "hidden_size": 12, "num_attention_heads": 4, "intermediate_size": 20, "num_hidden_layers": 1,
    "hidden_dropout_prob": 0.0, "initializer_range": 0.3,
}  # fmt: skip


def characters(text: str = TEXT.train, max_length: int = 16):
    """A tokenizer with one id a character."""
    return train_tokenizer("characters", text, max_length=max_length)


def written(folder: Path, **files: str) -> str:
    """A folder with files by name, with __ for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return str(folder)


def verses(folder: Path) -> str:
    """Tiny Shakespeare, in short: 1,620 characters."""
    return written(folder, input__txt=VERSE * 20)


def reviews(folder: Path) -> str:
    """SST-2, in short: 8 and 4 sentences."""
    lines = [
        f"{'not ' * (i % 3)}a {word} film\t{i % 2}\n" for i, word in enumerate(["bad", "fine", "dull", "good"] * 2)
    ]
    return written(folder, train__tsv="".join(lines), dev__tsv="".join(lines[:4]))


def alike(folder: Path) -> str:
    """STS-B, in short: 8 and 5 pairs."""
    head = "score\tsentence1\tsentence2\n"
    rows = [f"{i % 6}\t{VERSE[i : 2 * i + 3].strip()}\tthe mind\n" for i in range(2, 10)]
    return written(folder, train__tsv=head + "".join(rows), dev__tsv=head + "".join(rows[:5]))


def captions(folder: Path) -> str:
    """Multi30k, in short: 8, 3 and 5 pairs."""
    pairs = [(f"{'a big ' * (i % 4)}dog {i}", f"{'ein grosser ' * (i % 4)}hund {i}") for i in range(8)]
    files = {}
    for part, count in (("train", 8), ("val", 3), ("test_2016_flickr", 5)):
        for place, language in enumerate(("en", "de")):
            files[f"{part}__{language}"] = "".join(f"{pair[place]}\n" for pair in pairs[:count])
    return written(folder, **files)


def build(objective, seed: int = 0, **sizes):
    torch.manual_seed(seed)
    return objective.build(objective.config(**SIZES | sizes)).eval()


def batches(objective, split: str, size: int):
    examples = list(Numbered(objective, split))
    return [objective.collate(examples[start : start + size]) for start in range(0, len(examples), size)]


def by_hand(model, objective, split: str) -> float:
    """Mean over all labels of a split, one example at a time, in float64."""
    losses = []
    for batch in batches(objective, split, 1):
        labels = batch["labels"]
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        if isinstance(objective, Seq2Seq):
            start = torch.tensor([[objective.tokenizer.cls_token_id]])
            inputs["decoder_input_ids"] = torch.cat([start, labels[:, :-1]], 1)
        with torch.no_grad():
            scores = model(**inputs).logits.double().log_softmax(-1)
        if isinstance(objective, CausalLM):
            scores, labels = scores[:, :-1], labels[:, 1:]
        losses += [-scores[0, n, label] for n, label in enumerate(labels[0]) if label != -100]
    return torch.stack(losses).mean().item()
