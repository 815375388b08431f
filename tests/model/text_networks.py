"""The decoders and encoder-decoders of these tests, in the sizes of networks.py."""

import torch
from networks import RANK, VOCABULARY, K, config, stir

from greenformers.model import GreenformerForCausalLM, GreenformerForSeq2SeqLM

PAD, START, END, DECODER_LAYERS = 5, 7, 11, 3  # one more than the encoder has
SPECIAL = {"pad_token_id": PAD, "decoder_start_token_id": START, "bos_token_id": START}

DECODERS = {
    "dense": {},
    "lrt": {"rank": RANK},
    "mixed ranks": {"rank": {"k": 2, "output": RANK, "up": 5, "cross_q": 3, "cross_v": 13, "cross_output": 11}},
    "rank of each layer": {"rank": [7, {"q": 5, "cross_k": 2, "down": None}]},
    "narrow embedding": {"embedding_size": 11},
    "narrow lrt": {"embedding_size": 11, "rank": RANK},
    "learned": {"position": "learned"},
    "sinusoidal": {"position": "sinusoidal"},
    "modern": {
        "position": "rotary",
        "norm": "rms",
        "feed_forward": "gated",
        "hidden_act": "silu",
        "num_key_value_heads": 1,
        "qk_norm": True,
    },
    "modern lrt": {
        "position": "rotary",
        "norm": "rms",
        "feed_forward": "gated",
        "bias": True,
        "embedding_norm": True,
        "num_key_value_heads": 1,
        "rank": {"q": 5, "k": 2, "v": 3, "gate": 5, "up": RANK, "down": 11},
    },
    "no positions": {"position": "none"},
}
"""Name of a decoder to its options."""

LINFORMER = {"attention": "linformer", "attention_options": {"k": K}}
CROSS_LINFORMER = {"cross_attention": "linformer", "cross_attention_options": {"k": 13}}
SHARED = {"k": K, "sharing": "layerwise"}

PAIRS = {
    **DECODERS,
    "rank of each layer": {"rank": [7, {"q": 5}, None, {"cross_k": 2, "down": 3}, {"cross_q": 13, "v": 11}]},
    "linformer": LINFORMER | CROSS_LINFORMER,
    "lrt+linformer": {"rank": RANK} | LINFORMER | CROSS_LINFORMER,
    "linformer, no sharing": {
        "cross_attention": "linformer",
        "cross_attention_options": {"k": K, "sharing": "none"},
    },
    "linformer, layerwise": {
        "attention": "linformer",
        "attention_options": SHARED,
        "cross_attention": "linformer",
        "cross_attention_options": SHARED,
    },
    "attention of each layer": {
        "attention": ["full", "linformer"],
        "attention_options": [None, {"k": 5}],
        "decoder_attention": ["full"] * 3,
        "cross_attention": ["linformer", "full", "linformer"],
        "cross_attention_options": [{"k": 3}, None, {"k": 7}],
        "rank": [None, {"k": 3}, 7, {"cross_k": 2}, {"cross_v": 5, "cross_k": 11}],
    },
}
"""Name of an encoder-decoder to its options."""


def causal(name="dense", dtype=torch.float64, **options):
    return stir(GreenformerForCausalLM(config(**DECODERS[name] | options)).to(dtype)).eval()


def pair(name="dense", dtype=torch.float64, **options):
    sizes = {"decoder_layers": DECODER_LAYERS} | SPECIAL
    return stir(GreenformerForSeq2SeqLM(config(**sizes | PAIRS[name] | options)).to(dtype)).eval()


def tokens(*shape):
    """Tokens none of which is special."""
    return torch.randint(12, VOCABULARY, shape)


def left(mask):
    """The same lengths, padded on the left."""
    return mask.flip(1)
