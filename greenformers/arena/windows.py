"""The control of efficient attention: a local window that needs as many FLOPs as the variant it stands beside.

What a mechanism gains over a window of the same compute is what its long reach gives. FLOPs are those of a forward pass
of the whole network on one sequence of full length, see `greenformers.measure.flops`: projections that a mechanism has
of its own count, elementwise work, sorting and softmax do not.
"""

from collections.abc import Callable

from greenformers.arena.variants import BASELINE, WINDOW


def window_of(most: int, length: int, cost: Callable[[int], int]) -> int | None:
    """The widest window that costs no more than some FLOPs; at least 1.

    Args:
        most: FLOPs that it may cost.
        length: Length of a sequence.
        cost: FLOPs of the network with a window, which grow with it.

    Returns:
        Neighbours on either side; None where a window of all positions costs no more, which is dense attention.
    """
    low, high = 1, length - 1
    if cost(high) <= most:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle) <= most else (low, middle - 1)
    return low


def control(variant: str, length: int, flops_of: Callable[[str], int]) -> str:
    """Name of the local window beside a variant: the widest that costs no more FLOPs, or dense attention.

    Args:
        variant: Name of the variant.
        length: Length of a sequence.
        flops_of: FLOPs of the network of a variant.

    Raises:
        ValueError: The variant cannot be used.
    """
    most = flops_of(variant)
    if most >= flops_of(BASELINE):
        return BASELINE
    window = window_of(most, length, lambda size: flops_of(WINDOW.format(size)))
    return BASELINE if window is None else WINDOW.format(window)
