"""A process of its own, that knows nothing but the folders of the zoo: it reads each network and says what is wrong."""

import json
import sys
import warnings
from pathlib import Path

import greenformers

assert greenformers.__version__  # to import it is all it takes

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402

Batch = dict[str, Tensor]


@torch.no_grad()
def outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
    """All floating-point tensors that a network returns, drawn alike where it draws."""
    torch.manual_seed(0)
    return [x for x in model(**batch).to_tuple() if isinstance(x, Tensor) and x.is_floating_point()]


def aligned(model: nn.Module) -> nn.Module:
    """The same network with every weight at the start of memory of its own, as in one that was built.

    Weights that were read lie where their file has them, and on some processors sums are rounded otherwise there.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


def quiet() -> None:
    """What transformers and torch say of networks drawn at random is not the subject."""
    warnings.simplefilter("ignore")
    logging = transformers.utils.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def read(root: Path) -> dict[str, str]:
    """What is wrong with the folders, each loaded by its plain class."""
    faults = {}
    for folder in sorted(root.iterdir()):
        tensors = {name: x.clone() for name, x in load_file(folder / "expected.safetensors").items()}
        try:
            cls = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
            said = outputs(
                aligned(cls.from_pretrained(folder).eval()), {k[3:]: x for k, x in tensors.items() if k[:3] == "in."}
            )
            for place, x in enumerate(said):
                if not torch.equal(x, tensors[f"out.{place}"]):
                    raise AssertionError(f"outputs differ by {(x - tensors[f'out.{place}']).abs().max():.2g}")
        except Exception as error:
            faults[folder.name] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return faults


if __name__ == "__main__":
    quiet()
    torch.set_num_threads(1)
    print(json.dumps(read(Path(sys.argv[1]))))
