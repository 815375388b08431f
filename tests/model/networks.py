"""The networks of these tests: tiny, with a different prime for every size, one for every variant."""

import torch

from greenformers.model.block import EncoderLayer
from greenformers.model.config import GreenformerConfig
from greenformers.model.variant import slots

VOCABULARY, MAX_LEN, LAYERS = 37, 23, 2
HEADS, HEAD_DIM, f = 3, 5, 31
d = HEADS * HEAD_DIM
RANK, K = 7, 11

LAYERWISE = {"attention_options": {"k": K, "sharing": "layerwise"}}
MIXED_RANKS = {"rank": {"v": 3, "output": RANK, "up": 5}}

NETWORKS = {
    "transformer": ("transformer", {}),
    "lrt": ("lrt", {}),
    "linformer": ("linformer", {}),
    "lrt+linformer": ("lrt+linformer", {}),
    "mixed ranks": ("linformer", MIXED_RANKS),
    "no sharing": ("lrt+linformer", {"attention_options": {"k": K, "sharing": "none"}}),
    "layerwise": ("linformer", LAYERWISE),
    "lrt layerwise": ("lrt+linformer", LAYERWISE),
}
"""Name of a network to its variant and what else is set."""

FOUR = ("transformer", "lrt", "linformer", "lrt+linformer")


def config(name="transformer", **options):
    """Configuration of a network, without dropout; for values where `input_features` is given."""
    variant, more = NETWORKS[name]
    sizes = {
        "vocab_size": None if "input_features" in options else VOCABULARY,
        "max_position_embeddings": MAX_LEN,
        "hidden_size": d,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": f,
        "hidden_dropout_prob": 0.0,
    }
    return GreenformerConfig(**sizes | slots(variant, rank=RANK, options={"linformer": {"k": K}}) | more | options)


def stir(module):
    """Draw every parameter anew, so that linear layers keep variances and no bias or norm hides behind a 0 or a 1."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def layer(name="transformer", dtype=torch.float64, **options):
    """A single stirred layer of a network."""
    return stir(EncoderLayer(config(name, **options), 0).to(dtype)).eval()


def padding(B, N):
    """A mask (B, N), True = keep: the first sequence is whole, the others are padded more and more."""
    lengths = torch.linspace(N, max(1, N // 3), B).long()
    return torch.arange(N) < lengths[:, None]
