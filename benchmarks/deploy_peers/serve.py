"""What every peer of deploy.py does, without a line of the project: make its forms of a network, and serve one of them.

    python PEER.py make NETWORK TEXTS FOLDER [OPTION ..]    a folder of each form below FOLDER
    python PEER.py serve FORM TOKENIZER THREADS [OPTION ..]    answers commands, lines of JSON, until they end

    {"do": "time", "texts": FILE, "length": N, "seconds": S}    median milliseconds of the calls of S seconds
    {"do": "embed", "texts": FILE, "length": N, "to": FILE}    embeddings in a file of numpy
    {"do": "peak"}    the process' peak of resident memory since calls were last timed, in MiB

A call takes texts to embeddings: it tokenises them, cut to N tokens and padded to the longest, runs the network, and
takes the mean over tokens.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

SIZE = 32  # texts in a batch, where embeddings are asked for

Array = np.ndarray[Any, np.dtype[Any]]
Encoder = Callable[[dict[str, Array]], Array]
"""From input_ids, attention_mask and token_type_ids, int64 (B, N), to the last hidden state (B, N, d)."""


def main(make: Callable[..., None], load: Callable[..., Encoder]) -> None:
    """Do what the command line says.

    Args:
        make: Takes the folder of a network, texts to calibrate with, the folder of the forms, and the options.
        load: Takes the folder of a form, the number of threads, and the options.
    """
    task, network, given, *rest = sys.argv[1:]
    if task == "make":
        make(Path(network), read(given), Path(rest[0]), *rest[1:])
        return
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what libraries print is no answer
        embedder = Embedder(Tokenizer.from_file(given), load(Path(network), int(rest[0]), *rest[1:]))
        for line in sys.stdin:
            command = json.loads(line)
            print(json.dumps(COMMANDS[command.pop("do")](embedder, **command)), file=answers, flush=True)


def read(file: str) -> list[str]:
    """The texts of a file: a list in JSON."""
    return json.loads(Path(file).read_text())


def tokenise(tokenizer: Tokenizer, texts: list[str], length: int) -> dict[str, Array]:
    """The inputs of a network."""
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding()
    rows = tokenizer.encode_batch(texts)
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return {name: np.array([getattr(row, column) for row in rows], np.int64) for name, column in columns.items()}


class Embedder:
    """A tokenizer and an encoder: from texts to the mean over their tokens' states (B, d)."""

    def __init__(self, tokenizer: Tokenizer, encoder: Encoder) -> None:
        self.tokenizer, self.encoder = tokenizer, encoder

    def __call__(self, texts: list[str], length: int) -> Array:
        """Embeddings of a batch."""
        inputs = tokenise(self.tokenizer, texts, length)
        mask = inputs["attention_mask"].astype(np.float32)[:, None]  # (B, 1, N)
        return (mask @ self.encoder(inputs))[:, 0] / mask.sum(-1)


def timed(embedder: Embedder, texts: str, length: int, seconds: float) -> float:
    """Milliseconds of a call, of which there is one at least."""
    rows = read(texts)
    with suppress(OSError):  # where Linux lets it, the peak begins anew: else it were that of larger calls before
        Path("/proc/self/clear_refs").write_text("5")
    samples: list[float] = []
    start = time.perf_counter()
    while not samples or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        embedder(rows, length)
        samples.append(1e3 * (time.perf_counter() - before))
    return statistics.median(samples)


def embed(embedder: Embedder, texts: str, length: int, to: str) -> None:
    """Write the embeddings of texts, in their order; those in a batch are of about one length."""
    rows = read(texts)
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
    batches = [order[at : at + SIZE] for at in range(0, len(order), SIZE)]
    found = np.concatenate([embedder([rows[place] for place in batch], length) for batch in batches])
    np.save(to, found[np.argsort(order)])


def peak(_: Embedder) -> float:
    """MiB."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


COMMANDS: dict[str, Callable[..., Any]] = {"time": timed, "embed": embed, "peak": peak}
