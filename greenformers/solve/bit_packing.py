"""Numbers of N bits, 8 of them in N bytes: the first one in the lowest bits, each from its lowest bit on."""

import torch
from jaxtyping import Int
from torch import Tensor

CHUNK = 2**20
"""Numbers that are spread out into single bits at once."""


def packed_width(n: int, bits: int) -> int:
    """Bytes of a row of n numbers: those of a multiple of 8."""
    return (n + 7) // 8 * bits


def pack(q: Int[Tensor, "m n"], bits: int) -> Int[Tensor, "m bytes"]:
    """Numbers from 0 to 2^bits - 1 (m, n), uint8, as rows of bytes; what fills up a row is 0.

    Raises:
        ValueError: A number is larger.
    """
    if q.numel() and int(q.max()) >= 2**bits:
        raise ValueError(f"numbers of {bits} bits must be below {2**bits}, got {int(q.max())}")
    m, n = q.shape
    out = q.new_zeros(m, packed_width(n, bits))
    if bits == 8:
        out[:, :n] = q
        return out
    of_bits, of_bytes = (torch.arange(count, dtype=torch.uint8, device=q.device) for count in (bits, 8))
    rows = max(1, CHUNK // max(1, n))
    for start in range(0, m, rows):
        part = torch.nn.functional.pad(q[start : start + rows].contiguous(), (0, -n % 8))
        single = (part[..., None] >> of_bits) & 1
        out[start : start + rows] = (single.view(len(part), -1, 8) << of_bytes).sum(-1, dtype=torch.uint8)
    return out


def unpack(packed: Int[Tensor, "m bytes"], bits: int, n: int) -> Int[Tensor, "m n"]:
    """The n numbers of each row, uint8."""
    if bits == 8:
        return packed[:, :n]
    of_bits, of_bytes = (torch.arange(count, dtype=torch.uint8, device=packed.device) for count in (bits, 8))
    if 8 % bits == 0:  # no number lies in two bytes
        return ((packed[..., None] >> of_bytes[::bits]) & (2**bits - 1)).flatten(1)[:, :n]
    rows = max(1, CHUNK // max(1, n))
    parts = []
    for part in packed.split(rows):
        single = (part[..., None] >> of_bytes) & 1
        single = single.view(len(part), part.shape[1] * 8 // bits, bits)
        parts.append((single << of_bits).sum(-1, dtype=torch.uint8)[:, :n])
    return torch.cat(parts) if parts else packed.new_zeros(0, n)
