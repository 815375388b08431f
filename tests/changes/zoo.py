"""Tiny networks of `transformers`, drawn at random: what there is to compress."""

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

# fmt: off
TEXT = {"vocab_size": 53, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER = {
    "vocab_size": 53, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 44,
    "max_position_embeddings": 40,
}
SEQ2SEQ = TEXT | {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44, "decoder_start_token_id": 1,
}
TOWER = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 44}

# Class of the network, class that reloads it, options of its configuration.
ZOO: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", "AutoModelForMaskedLM", ENCODER),
    "roberta": ("RobertaForMaskedLM", "AutoModelForMaskedLM", ENCODER),
    "distilbert": (
        "DistilBertForMaskedLM",
        "AutoModelForMaskedLM",
        {"vocab_size": 53, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 44, "max_position_embeddings": 40},
    ),
    "albert": ("AlbertForMaskedLM", "AutoModelForMaskedLM", ENCODER | {"embedding_size": 24}),
    "electra": ("ElectraForMaskedLM", "AutoModelForMaskedLM", ENCODER | {"embedding_size": 24}),
    "gpt2": (
        "GPT2LMHeadModel",
        "AutoModelForCausalLM",
        {
            "vocab_size": 53,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 40,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
    ),
    "llama": (
        "LlamaForCausalLM",
        "AutoModelForCausalLM",
        ENCODER | TEXT | {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "AutoModelForSeq2SeqLM",
        {
            "vocab_size": 53,
            "d_model": 32,
            "d_kv": 16,
            "d_ff": 44,
            "num_layers": 1,
            "num_decoder_layers": 1,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": (
        "BartForConditionalGeneration",
        "AutoModelForSeq2SeqLM",
        SEQ2SEQ | {"max_position_embeddings": 40},
    ),
    "vit": (
        "ViTForImageClassification",
        "AutoModelForImageClassification",
        TOWER | {"image_size": 20, "patch_size": 5},
    ),
    "wav2vec2": (
        "Wav2Vec2ForCTC",
        "AutoModelForCTC",
        TOWER
        | {
            "vocab_size": 31,
            "conv_dim": (32, 32),
            "conv_stride": (5, 3),
            "conv_kernel": (10, 5),
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 4,
        },
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "AutoModelForSpeechSeq2Seq",
        SEQ2SEQ | {"num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 24, "pad_token_id": 2},
    ),
    "clip": (
        "CLIPModel",
        "AutoModel",
        {
            "text_config": TOWER | TEXT | {"max_position_embeddings": 40},
            "vision_config": TOWER | {"image_size": 20, "patch_size": 5},
            "projection_dim": 24,
        },
    ),
}
# fmt: on

EVERYTHING = ("*",)
"""Selects all that has a low-rank form."""
GENERATES = ("gpt2", "llama", "t5", "bart", "whisper")


def network(name: str, cls: str | None = None, **more: Any) -> PreTrainedModel:
    """A network of the zoo, or another class of the same configuration; always the same weights."""
    torch.manual_seed(0)
    built, _, options = ZOO[name]
    model_class = getattr(transformers, cls or built)
    model = model_class(model_class.config_class(**options | more)).eval()
    # As first drawn, biases are zero and so is much of what could go wrong.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def inputs(name: str, batch: int = 2, length: int = 7) -> dict[str, Tensor]:
    """A batch for it."""
    draw = torch.Generator().manual_seed(1)
    if name == "wav2vec2":
        return {"input_values": torch.randn(batch, 400, generator=draw)}
    pixels = torch.randn(batch, 3, 20, 20, generator=draw)
    if name == "vit":
        return {"pixel_values": pixels}
    ids = torch.randint(3, 53, (batch, length), generator=draw)
    if name == "whisper":
        return {"input_features": torch.randn(batch, 16, 40, generator=draw), "decoder_input_ids": ids}
    tensors = {"input_ids": ids}
    if name in ("t5", "bart"):
        tensors["decoder_input_ids"] = torch.randint(3, 53, (batch, length - 2), generator=draw)
    return tensors | ({"pixel_values": pixels} if name == "clip" else {})


def everything(_: str, __: nn.Module) -> bool:
    """Selects all that has a low-rank form."""
    return True


@torch.no_grad()
def outputs(model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    """All tensors that it returns."""
    output = model(**batch)
    return [part for part in output.to_tuple() if isinstance(part, Tensor)]


def difference(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest, over all tensors."""
    assert len(a) == len(b) > 0
    # Of tensors: Python's max leaves out a nan behind a number.
    return torch.stack([(x.float() - y.float()).abs().max() for x, y in zip(a, b, strict=True)]).max().item()
