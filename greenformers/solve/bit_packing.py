"""Numbers of N bits, 8 of them in N bytes: the first one in the lowest bits, each from its lowest bit on.

Numbers from 0 to 2, of "1.58" bits, are digits to base 3, 5 of them in a byte, the first one the lowest.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from greenformers.solve.grid import TERNARY, levels

CHUNK = 2**20
"""Numbers that are packed at once."""

DIGITS = 5
"""Digits to base 3 in a byte: 3^5 = 243."""


def packed_width(n: int, bits: float) -> int:
    """Bytes of a row of n numbers: those of a multiple of 8, or of 5 to base 3."""
    return -(-n // DIGITS) if bits == TERNARY else (n + 7) // 8 * int(bits)


def pack(q: Int[Tensor, "m n"], bits: float) -> Int[Tensor, "m bytes"]:
    """Numbers from 0 to 2^bits - 1, or 2, (m, n), uint8, as rows of bytes; what fills up a row is 0.

    Raises:
        ValueError: A number is larger.
    """
    if q.numel() and int(q.max()) > levels(bits):
        raise ValueError(f"numbers of {bits:g} bits must be below {levels(bits) + 1}, got {int(q.max())}")
    m, n = q.shape
    out = q.new_zeros(m, packed_width(n, bits))
    if bits == 8:
        out[:, :n] = q
        return out
    each = DIGITS if bits == TERNARY else 8
    rows = max(1, CHUNK // max(1, n))
    for start in range(0, m, rows):
        part = torch.nn.functional.pad(q[start : start + rows].contiguous(), (0, -n % each))
        out[start : start + rows] = _digits(part) if bits == TERNARY else _bits(part, int(bits))
    return out


def _digits(q: Tensor) -> Tensor:
    powers = 3 ** torch.arange(DIGITS, dtype=torch.uint8, device=q.device)
    return (q.view(len(q), -1, DIGITS) * powers).sum(-1, dtype=torch.uint8)


def _bits(q: Tensor, bits: int) -> Tensor:
    numbers = q.view(len(q), -1, 8).permute(2, 0, 1).contiguous()
    held = [torch.zeros_like(numbers[0]) for _ in range(bits)]
    for (byte, shift), number in zip(_places(bits), numbers, strict=True):
        held[byte] |= number << shift
        if shift + bits > 8:
            held[byte + 1] |= number >> (8 - shift)
    return torch.stack(held, -1).flatten(1)


def _places(bits: int) -> list[tuple[int, int]]:
    """Where each of 8 numbers begins in their N bytes: byte, and bit of the byte."""
    return [divmod(number * bits, 8) for number in range(8)]


def unpack(packed: Int[Tensor, "m bytes"], bits: float, n: int) -> Int[Tensor, "m n"]:
    """The n numbers of each row, uint8."""
    if bits == 8:
        return packed[:, :n]
    if bits == TERNARY:
        powers = 3 ** torch.arange(DIGITS, dtype=torch.uint8, device=packed.device)
        return (packed[..., None] // powers % 3).flatten(1)[:, :n]
    bits = int(bits)
    if 8 % bits == 0:  # no number lies in two bytes
        parts = [(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
        return torch.stack(parts, -1).flatten(1)[:, :n]
    held = packed.unflatten(1, (-1, bits)).permute(2, 0, 1).contiguous()
    numbers = []
    for byte, shift in _places(bits):
        number = held[byte] >> shift
        if shift + bits > 8:
            number = number | held[byte + 1] << (8 - shift)
        numbers.append(number & (2**bits - 1))
    return torch.stack(numbers, -1).flatten(1)[:, :n]
