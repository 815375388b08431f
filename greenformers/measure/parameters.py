"""The number of parameters of a module."""

from torch import nn


def parameters(module: nn.Module) -> int:
    """Count the numbers in the parameters of `module`, trainable or frozen; tied or shared ones count once.

    Buffers are no parameters and do not count. Modules that hold several numbers in one byte say by `more_numbers` how
    many there are beyond those bytes.
    """
    return sum(parameter.numel() for parameter in module.parameters()) + packed_numbers(module)


def packed_numbers(module: nn.Module) -> int:
    """Count the numbers that share a byte with others, beyond those bytes."""
    return sum(int(getattr(part, "more_numbers", 0)) for part in module.modules())


def bytes_of(model: nn.Module) -> int:
    """Bytes of the weights as saved: tied ones count once, and buffers count where they are saved.

    Modules whose weights are saved in a shorter form than they are held in say so by `bytes_spared`.
    """
    saved = model.state_dict().keys()
    tensors = [*model.parameters(), *(buffer for name, buffer in model.named_buffers() if name in saved)]
    spared = sum(int(getattr(module, "bytes_spared", 0)) for module in model.modules())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) - spared
