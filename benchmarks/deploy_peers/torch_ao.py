"""torchao: int8 weights, inputs rounded at every call; eager, or compiled by the option "compiled"."""

from pathlib import Path

import serve
import torch
import torchao.quantization
from transformers import AutoConfig, AutoModel
from transformers.initialization import no_init_weights

FILE = "weights.pt"
INT8 = "int8"


def make(network: Path, texts: list[str], folder: Path) -> None:
    """Quantise; there is nothing to calibrate."""
    model = AutoModel.from_pretrained(network, add_pooling_layer=False).eval()
    torchao.quantization.quantize_(model, torchao.quantization.Int8DynamicActivationInt8WeightConfig())
    model.config.save_pretrained(folder / INT8)
    torch.save(model.state_dict(), folder / INT8 / FILE)


def load(folder: Path, threads: int, *options: str) -> serve.Encoder:
    """The network."""
    torch.set_num_threads(threads)
    with no_init_weights():
        model = AutoModel.from_config(AutoConfig.from_pretrained(folder), add_pooling_layer=False).eval()
    model.load_state_dict(torch.load(folder / FILE, mmap=True), assign=True)
    # One program for all batches and lengths.
    run = torch.compile(model, dynamic=True) if "compiled" in options else model

    def encoder(inputs: dict[str, serve.Array]) -> serve.Array:
        with torch.inference_mode():
            return run(**{name: torch.from_numpy(values) for name, values in inputs.items()}).last_hidden_state.numpy()

    return encoder


if __name__ == "__main__":
    serve.main(make, load)
