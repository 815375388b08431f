"""OpenVINO: the dense network as it converts it, and NNCF's int8 of it."""

from pathlib import Path

import openvino
import serve

FILE = "openvino_model.xml"
DENSE, INT8 = "dense", "nncf-int8"


def make(network: Path, texts: list[str], folder: Path) -> None:
    """Convert, and quantise on texts; what is not int8 is saved in fp16, as OpenVINO does by default."""
    import nncf
    from dense import Dense, example
    from tokenizers import Tokenizer

    model = openvino.convert_model(Dense(network), example_input=example())
    openvino.save_model(model, folder / DENSE / FILE)
    tokenizer = Tokenizer.from_file(str(network / "tokenizer.json"))
    batches = nncf.Dataset([serve.tokenise(tokenizer, [text], 128) for text in texts])
    small = nncf.quantize(model, batches, subset_size=len(texts), model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(small, folder / INT8 / FILE)


def load(folder: Path, threads: int) -> serve.Encoder:
    """A compiled network, of any file that takes some of the three inputs."""
    (path,) = folder.rglob("*.xml")
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(path, "CPU", options)
    names = [given.any_name for given in compiled.inputs]
    return lambda inputs: compiled({name: inputs[name] for name in names})[0]


if __name__ == "__main__":
    serve.main(make, load)
