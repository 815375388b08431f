"""Programs of torch.export: written, and read again. `torch.export.load` unpickles: load only files of your own."""

from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from greenformers.checkpoint.files import line
from greenformers.export.network import Call, Outputs


def save_program(program: ExportedProgram, path: Path) -> None:
    """Write a program.

    Raises:
        ValueError: torch cannot write it.
        OSError: The file cannot be written.
    """
    try:
        torch.export.save(program, path)
    except OSError:
        raise
    except Exception as error:  # of its own checks of the graph
        raise ValueError(f"the model cannot be written as a program: {line(error)}") from error


def read_program(path: Path) -> Call:
    """A program as a function of tensors.

    Raises:
        ValueError: The file cannot be read.
        OSError: The file cannot be opened.
    """
    try:
        program = torch.export.load(path).module()
    except OSError:
        raise
    except Exception as error:  # of its own checks of the graph, which are not those of writing
        raise ValueError(f"{path.name} cannot be read again: {line(error)}") from error

    def run(*tensors: Tensor) -> Outputs:  # and not the module itself, which refuses to be put into any mode
        outputs: Outputs = program(*tensors)
        return outputs

    return run
