"""Who sees whom in each pattern, from its formula, in plain numbers; and softmax attention over that, pair by pair."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Sees = Callable[[Any, int, int, int, int], bool]
"""(module, i, j, head, length) -> whether position i sees position j, the future apart."""


def pattern(sees: Sees) -> Callable[..., Tensor]:
    """The oracle of a pattern: the formula of softmax attention over the keys that are seen."""

    def oracle(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        out = []
        for b, h, row in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
            i = row + keys - queries
            found = [
                j
                for j in range(keys)
                if sees(module, i, j, h, keys)
                and not (module.shape.causal and j > i)
                and (key_mask is None or key_mask[b, j])
            ]
            if not found:
                out.append(torch.zeros_like(q[b, h, row]))
                continue
            given = k[b, h, found]
            if getattr(module, "clip", None) is not None:
                given = given + torch.stack([label(module, i, j, h) for j in found])
            weights = (given @ q[b, h, row] / math.sqrt(q.shape[3])).softmax(0)
            out.append(weights @ v[b, h, found])
        return torch.stack(out).view(q.shape)

    return oracle


def label(module: Any, i: int, j: int, head: int) -> Tensor:
    """What ETC adds to a key, by its relative position. Ainslie 2020, 3.2."""
    distance = max(-module.clip, min(module.clip, j - i)) + module.clip
    wide, other = i < module.globals, j < module.globals
    if wide != other:
        return module.between[head, int(wide)]
    return (module.wide if wide else module.long)[head, distance]


def sliding_window(module: Any, i: int, j: int, head: int, length: int) -> bool:
    d = module.dilation[head]
    return j in range(i - module.window * d, i + module.window * d + 1, d)


def cascade(module: Any, i: int, j: int, head: int, length: int) -> bool:
    return abs(i - j) < module.base * module.cardinal**module.shape.layer


def local_blocks(module: Any, i: int, j: int, head: int, length: int) -> bool:
    start = i - i % module.block
    return start - module.block <= j < start + module.block


def sparse_strided(module: Any, i: int, j: int, head: int, length: int) -> bool:
    """Survey (14)."""
    s = module.stride
    return i + s > j > i - s or (i - j) % s == 0


def sparse_fixed(module: Any, i: int, j: int, head: int, length: int) -> bool:
    """Survey (15) for head 0; for the next the c columns before, while there are any."""
    s, c = module.stride, module.summary
    turn = head % (s // c)
    return math.floor(j / s) == math.floor(i / s) or s - c <= j % s + turn * c < s


def blockwise(module: Any, i: int, j: int, head: int, length: int) -> bool:
    """Survey (16), where positions, blocks and permutations count from 1."""
    n = module.blocks
    one, other = (math.floor((at + 1 - 1) * n / length + 1) for at in (i, j))
    permutation = [(block + head) % n + 1 for block in range(n)]
    return permutation[one - 1] == other


def longformer(module: Any, i: int, j: int, head: int, length: int) -> bool:
    return sliding_window(module, i, j, head, length) or i < module.globals or j < module.globals


def bigbird(module: Any, i: int, j: int, head: int, length: int) -> bool:
    """Blocks side by side, global ones, and the random ones that the module has drawn."""
    b = module.block
    front = b if module.extra_globals is None else module.extra_globals
    back = 0 if module.extra_globals is not None or length <= b else (length - 1) % b + 1
    if min(i, j) < front or max(i, j) >= length - back:
        return True
    own, other = (i - front) // b, (j - front) // b
    table = module.table(-(-(length - front - back) // b), torch.device("cpu"))
    return abs(own - other) <= 1 or (table is not None and other in table[head, own].tolist())


def etc(module: Any, i: int, j: int, head: int, length: int) -> bool:
    return abs(i - j) <= module.radius or i < module.globals or j < module.globals
