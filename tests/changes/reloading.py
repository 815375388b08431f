"""A process that reloads every saved network by plain `transformers`, and says as JSON how it differs.

Arguments: a folder of folders, each with a network, `expected.safetensors` of its batch and outputs and `auto.txt`, the
class that is to load it.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import greenformers

assert greenformers.__version__
if "torch" not in sys.modules:  # else this is a fork of a process that has imported it
    # `import greenformers` costs nothing, and is all it takes.
    assert "transformers" not in sys.modules
    # To ask where the part is that the plug-in waits for does not make it miss it.
    assert find_spec("transformers.quantizers.auto") is not None

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

TOKENS = 6
# As the tests do: sums over another number of threads round otherwise, and the difference is to be 0.
torch.set_num_threads(1)


def reloaded(folder: Path) -> dict[str, object]:
    """What one network does."""
    model, info = getattr(transformers, (folder / "auto.txt").read_text()).from_pretrained(
        folder, output_loading_info=True
    )
    expected = load_file(folder / "expected.safetensors")
    batch = {name.removeprefix("in."): value for name, value in expected.items() if name.startswith("in.")}
    with torch.no_grad():
        actual = [part for part in model(**batch).to_tuple() if isinstance(part, torch.Tensor)]
    outputs = [
        expected[name] for name in sorted(expected, key=lambda name: (len(name), name)) if name.startswith("out.")
    ]
    # Of tensors: Python's max leaves out a nan behind a number.
    difference = torch.stack([(a - b).abs().max() for a, b in zip(actual, outputs, strict=True)]).max().item()
    seen: dict[str, object] = {
        "difference": difference,
        "outputs": len(actual),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "keys": {name: len(keys) for name, keys in info.items() if keys},
    }
    if model.can_generate():
        seen["cached"], seen["uncached"] = generated(model, batch, True), generated(model, batch, False)
    return seen


def generated(model: PreTrainedModel, batch: dict[str, torch.Tensor], cached: bool) -> list[list[int]]:
    """What it writes, by greedy choice."""
    batch = {name: value for name, value in batch.items() if name != "decoder_input_ids"}
    mask = {"attention_mask": torch.ones_like(batch["input_ids"])} if "input_ids" in batch else {}
    return model.generate(
        **batch, **mask, use_cache=cached, do_sample=False, num_beams=1, min_new_tokens=TOKENS, max_new_tokens=TOKENS
    ).tolist()


if __name__ == "__main__":
    print(json.dumps({path.name: reloaded(path) for path in sorted(Path(sys.argv[1]).iterdir())}))
