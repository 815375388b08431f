"""Our models as transformers' common tests want them: one class of tests for each mechanism and kind of stack.

`common_model_tests.py` puts this file beside these tests, and the names of the mechanisms in a file `names`.
"""

import copy
import unittest
from pathlib import Path
from typing import Any

import torch

import greenformers.model as ours
from greenformers import attention
from greenformers.attention import Shape

from .generation.test_utils import GenerationTesterMixin  # type: ignore[import-not-found]
from .test_modeling_common import (  # type: ignore[import-not-found]
    MODEL_MAPPING_NAMES,
    ModelTesterMixin,
    ids_tensor,
    random_attention_mask,
)

BATCH, LENGTH, WIDTH, LAYERS, HEADS, VOCABULARY, LABELS = 5, 7, 32, 2, 4, 99, 3
KINDS = {
    "Encoder": (
        "GreenformerModel", "GreenformerForMaskedLM", "GreenformerForSequenceClassification",
        "GreenformerForTokenClassification",
    ),
    "Decoder": ("GreenformerDecoder", "GreenformerForCausalLM"),
    "Seq2Seq": ("GreenformerForSeq2SeqLM",),
}  # fmt: skip
"""Model classes of one configuration each."""


class Tester:
    """What the common tests ask for a network and its inputs."""

    batch_size, seq_length, hidden_size, vocab_size = BATCH, LENGTH, WIDTH, VOCABULARY
    num_hidden_layers, num_attention_heads, num_labels = LAYERS, HEADS, LABELS
    is_training, key_length, encoder_seq_length, decoder_seq_length = True, LENGTH, LENGTH, LENGTH

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name

    def get_config(self) -> ours.GreenformerConfig:
        """The configuration."""
        options: dict[str, Any] = {"attention": self.name, "num_labels": LABELS}
        if self.kind == "Seq2Seq":
            options |= {"decoder_layers": LAYERS, "decoder_start_token_id": 2}
        return ours.GreenformerConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            intermediate_size=37, max_position_embeddings=32, pad_token_id=0, eos_token_id=1, bos_token_id=2,
            **options,
        )  # fmt: skip

    def prepare_config_and_inputs_for_common(self) -> tuple[ours.GreenformerConfig, dict[str, torch.Tensor]]:
        """The configuration and a batch."""
        inputs = {
            "input_ids": ids_tensor([BATCH, LENGTH], VOCABULARY),
            "attention_mask": random_attention_mask([BATCH, LENGTH]),
        }
        if self.kind == "Seq2Seq":
            inputs["decoder_input_ids"] = ids_tensor([BATCH, LENGTH], VOCABULARY)
        return self.get_config(), inputs


class Ours(ModelTesterMixin):
    """The common tests, told which labels our heads take."""

    kind, mechanism = "", ""

    def setUp(self) -> None:
        """Before each test."""
        # Which of ours have no head, and under which name heads hold them: an encoder-decoder holds two.
        MODEL_MAPPING_NAMES["greenformer"] = "GreenformerDecoder" if self.kind == "Decoder" else "GreenformerModel"
        self.model_tester = Tester(self.kind, self.mechanism)

    def _prepare_for_class(self, inputs_dict: Any, model_class: Any, return_labels: bool = False) -> Any:
        inputs = copy.deepcopy(inputs_dict)
        if return_labels:
            if "Sequence" in model_class.__name__:
                inputs["labels"] = torch.zeros(BATCH, dtype=torch.long)
            elif "For" in model_class.__name__:
                inputs["labels"] = torch.zeros(BATCH, LENGTH, dtype=torch.long)
        return inputs


def _has(kind: str, name: str) -> bool:
    shape = Shape(HEADS, WIDTH // HEADS, 32, causal=kind == "Decoder", layers=LAYERS)
    try:
        attention.build(name, shape)
    except ValueError:
        return False
    return True


for _name in (Path(__file__).parents[1] / "names").read_text().split():
    for _kind, _classes in KINDS.items():
        if _has(_kind, _name):
            _class = f"{_kind}_{_name}"
            _bases = (
                (Ours, unittest.TestCase) if _kind == "Encoder" else (Ours, GenerationTesterMixin, unittest.TestCase)
            )
            globals()[_class] = type(_class, _bases, {
                "kind": _kind, "mechanism": _name, "is_encoder_decoder": _kind == "Seq2Seq",
                "all_model_classes": tuple(getattr(ours, each) for each in _classes), "has_attentions": True,
                # The kernel of a compressed memory learns from what leaves a memory, and here nothing does.
                "test_all_params_have_gradient": _name != "compressive",
            })  # fmt: skip
