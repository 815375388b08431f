"""Layers of few bits as ONNX Runtime and OpenVINO run them packed: by the operator `MatMulNBits`.

    y = x W^T,   W = s (q - z),   q in 4 or 8 bits, s and z of each block of inputs of a row

| weights of | are held as |
|---|---|
| 1 bit, s (q - 1/2) | s / 2 (2 q - 1), in 4 bits |
| 1.58 to 4 bits | they are, in 4 bits: ONNX Runtime takes 30 times as long with 2 |
| 5 to 8 bits | they are, in 8 bits |

Inputs stay float32 (`accuracy_level` 1). Groups of inputs become blocks of a power of 2 that divides them.
"""

import copy
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers.changes._bits_layers import BitsLinear, Packed
from greenformers.changes._coded import CodedEmbedding, CodedExperts, coded, opened
from greenformers.solve.bit_packing import pack
from greenformers.solve.grid import BINARY
from greenformers.solve.units import put

M = TypeVar("M", bound=nn.Module)

BLOCKS = (256, 128, 64, 32, 16)
"""Inputs of a block, as the operator takes them."""

USUAL = 64
"""Inputs of a block where all of a row share a step."""


class Blocks(nn.Module):
    """The numbers of a weight (m, n) as the operator takes them.

    Attributes:
        bits: Bits of a number, 4 or 8.
        block: Inputs of a block, of which a row has K.
        codes: q (m, K, block bits / 8), uint8, the first number in the lowest bits.
        scale: s (m K,). It and z are flat, as the operator takes them: OpenVINO reads no operator of what is computed.
        zero: z in as many bits, of bytes (m K bits / 8,), uint8, each row for itself.
    """

    def __init__(self, held: Packed) -> None:
        super().__init__()
        form, self.m, self.n = held.form, held.m, held.n
        q, grid = held.q(), held.grid
        binary = form.bits == BINARY
        self.bits = 4 if form.bits <= 4 else 8
        shared = form.group_of(self.n)
        self.block = USUAL if shared == self.n else block_of(shared)
        scale, zero = (x.expand(self.m, self.n) for x in grid.columns(0, self.n, self.n))
        if binary:
            q, scale, zero = 2 * q, scale / 2, 2 * zero
        count = -(-self.n // self.block)
        q = F.pad(q, (0, count * self.block - self.n))
        codes = pack(q, self.bits).view(self.m, count, self.block * self.bits // 8)
        zeros = zero[:, :: self.block].round().to(torch.uint8)
        self.codes = nn.Parameter(codes, requires_grad=False)
        packed_zeros = pack(zeros, self.bits)[:, : -(-count * self.bits // 8)]
        self.scale = nn.Parameter(scale[:, :: self.block].flatten(), requires_grad=False)
        self.zero = nn.Parameter(packed_zeros.flatten(), requires_grad=False)
        self.zeros: Tensor
        self.register_buffer("zeros", zeros.float()[..., None], persistent=False)

    def rows(self, at: Int[Tensor, "..."]) -> Float[Tensor, "... n"]:
        """Rows of the weight."""
        codes = self.codes[at].float()
        if self.bits == 4:
            high = (codes / 16).floor()
            codes = torch.stack([codes - 16 * high, high], -1).flatten(-2)
        return ((codes - self.zeros[at]) * self.scale.view(self.m, -1)[at][..., None]).flatten(-2)[..., : self.n]

    def product(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The product x W^T; in a graph, the operator."""
        if not torch.compiler.is_exporting():
            return F.linear(x, self.rows(torch.arange(self.m)))
        attributes: dict[str, Any] = {
            "K": self.n, "N": self.m, "bits": self.bits, "block_size": self.block, "accuracy_level": 1,
        }  # fmt: skip
        inputs = (x, self.codes, self.scale, self.zero)
        return torch.onnx.ops.symbolic(
            "com.microsoft::MatMulNBits", inputs, attributes, dtype=x.dtype, shape=(*x.shape[:-1], self.m), version=1
        )


class PackedLinear(nn.Module):
    """A linear layer of few bits, for exported files.

    Args:
        layer: The layer; its bias is shared.
        blocks: The numbers of its weight.
    """

    def __init__(self, layer: BitsLinear, blocks: Blocks) -> None:
        super().__init__()
        held = layer.held
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.blocks, self.bias = blocks, layer.bias
        self.inverse: Tensor | None
        self.register_buffer("inverse", None if held.inputs is None else 1 / held.inputs.float())
        self.left = None if held.left is None else Blocks(held.left)
        self.right = None if held.right is None else Blocks(held.right)

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The outputs x W^T + b."""
        y = self.blocks.product(x if self.inverse is None else x * self.inverse)
        if self.left is not None and self.right is not None:
            y = y + self.left.product(self.right.product(x))
        return y if self.bias is None else y + self.bias


class PackedEmbedding(nn.Module):
    """An embedding of few bits, for exported files.

    Args:
        layer: The embedding.
        blocks: The numbers of its rows.
    """

    def __init__(self, layer: CodedEmbedding, blocks: Blocks) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = layer.num_embeddings, layer.embedding_dim
        self.padding_idx, self.blocks = layer.padding_idx, blocks

    def forward(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... d"]:
        """Rows of the ids."""
        return self.blocks.rows(ids)


def block_of(shared: int) -> int:
    """The largest block that divides a group of inputs that share a step.

    Raises:
        ValueError: There is none.
    """
    block = next((block for block in BLOCKS if shared % block == 0), None)
    if block is None:
        raise ValueError(f"onnx and openvino hold groups of a multiple of {BLOCKS[-1]} inputs, got {shared}")
    return block


def has_packed(model: nn.Module) -> bool:
    """Whether a network has layers of few bits."""
    return bool(coded(model, Packed))


def check_packed(model: nn.Module) -> None:
    """Check that all layers of few bits can be written.

    Raises:
        ValueError: Groups of one are no blocks, or there are experts.
    """
    for path, layer in coded(model, Packed):
        if isinstance(layer, CodedExperts):
            raise ValueError(f"{path}: experts of few bits have no form in onnx and openvino; leave them out by select")
        held: Any = layer.held
        if held.form.group_of(held.n) < held.n:
            try:
                block_of(held.form.group_of(held.n))
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error


def unpacked(model: M) -> M:
    """A copy of a network with dense layers in place of those of few bits, which round nothing to bfloat16."""
    twin = copy.deepcopy(model)
    opened(twin, Packed)
    return twin


def packed(model: M) -> M:
    """A copy of a network with layers for exported files in place of those of few bits; other weights are shared.

    Raises:
        ValueError: Raised as by `check_packed`.
    """
    check_packed(model)
    memo = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    twin = copy.deepcopy(model, memo)
    blocks: dict[int, Blocks] = {}
    for path, layer in coded(twin, Packed):
        held: Any = layer.held
        if id(held) not in blocks:
            blocks[id(held)] = Blocks(held)
        kind: Any = PackedEmbedding if isinstance(layer, CodedEmbedding) else PackedLinear
        put(twin, path, kind(layer, blocks[id(held)]))
    return twin
