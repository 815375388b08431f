"""Ours: the dense network in torch, int8, low rank with int8, one given as a folder; each in other runtimes too."""

import copy
from pathlib import Path

import serve
import torch
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

import greenformers
from greenformers.changes.int8 import Int8
from greenformers.changes.low_rank import LowRank

DENSE, INT8, LOW_RANK = "dense", "int8", "low-rank-int8"
RANDOM = "random"
"""The option of a network whose weights are random: ranks are shared out evenly then, as its losses say nothing."""
SMALL = "small="
"""The option that names the folder of a network that was compressed before."""


def make(network: Path, texts: list[str], folder: Path, *options: str) -> None:
    """Compress without training, and export each network for every runtime."""
    dense, tokenizer = AutoModel.from_pretrained(network).eval(), AutoTokenizer.from_pretrained(network)

    def export(model: PreTrainedModel, form: str) -> None:
        greenformers.export(model, folder / form, texts=texts, tokenizer=tokenizer)

    export(dense, DENSE)
    rank = LowRank(keep=0.5, solver="svd", uniform=True) if RANDOM in options else LowRank(keep=0.5)
    for form, recipe in ((INT8, [Int8()]), (LOW_RANK, [rank, Int8()])):
        small = copy.deepcopy(dense)
        greenformers.compress(small, recipe, texts=texts, tokenizer=tokenizer)
        export(small, form)
    for option in options:
        if option.startswith(SMALL):
            small_folder = Path(option.removeprefix(SMALL))
            export(AutoModel.from_pretrained(small_folder).eval(), small_folder.name)


def load(folder: Path, threads: int) -> serve.Encoder:
    """The network, dense or compressed."""
    torch.set_num_threads(threads)
    model = AutoModel.from_pretrained(folder).eval()

    def encoder(inputs: dict[str, serve.Array]) -> serve.Array:
        with torch.inference_mode():
            return model(**{k: torch.from_numpy(values) for k, values in inputs.items()}).last_hidden_state.numpy()

    return encoder


if __name__ == "__main__":
    serve.main(make, load)
