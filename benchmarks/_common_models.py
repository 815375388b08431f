"""Our models as transformers' common tests want them: one class of tests for each mechanism and kind of stack.

`common_model_tests.py` puts this file beside these tests, and the names of the mechanisms in a file `names`.
"""

import copy
import sys
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
    floats_tensor,
    ids_tensor,
    random_attention_mask,
)

BATCH, LENGTH, WIDTH, LAYERS, HEADS, VOCABULARY, LABELS, CHOICES = 5, 7, 32, 2, 4, 99, 3, 2
IMAGE, PATCH, CHANNELS = 6, 3, 3  # 4 patches, and a [CLS] before them
FEATURES = CHANNELS * PATCH**2  # of a frame of sound too
KINDS = {
    "Encoder": (
        "GreenformerModel", "GreenformerForMaskedLM", "GreenformerForSequenceClassification",
        "GreenformerForTokenClassification", "GreenformerForQuestionAnswering", "GreenformerForMultipleChoice",
        "GreenformerForPreTraining", "GreenformerForSentenceEmbedding",
    ),
    "Image": ("GreenformerForImageClassification",),
    "Audio": ("GreenformerForAudioClassification",),
    "Decoder": ("GreenformerDecoder", "GreenformerForCausalLM"),
    "Seq2Seq": ("GreenformerForSeq2SeqLM",),
}  # fmt: skip
"""Model classes of one configuration each."""


common = sys.modules[ModelTesterMixin.__module__]
_same = common._test_eager_matches_sdpa_inference


def _same_up_to_choices(test: Any, *given: Any) -> None:
    """In bfloat16 two kernels differ by a rounding, by which `routing` chooses other keys in the next layer."""
    if test.mechanism == "routing" and "bf16" in given:
        test.skipTest("keys are chosen by a step that rounding changes")
    _same(test, *given)


common._test_eager_matches_sdpa_inference = _same_up_to_choices  # type: ignore[attr-defined]


class Tester:
    """What the common tests ask for a network and its inputs."""

    batch_size, seq_length, hidden_size, vocab_size = BATCH, LENGTH, WIDTH, VOCABULARY
    num_hidden_layers, num_attention_heads, num_labels = LAYERS, HEADS, LABELS
    is_training, decoder_seq_length = True, LENGTH

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        # Positions of the encoder: of an image its patches, of sound its frames, and a [CLS] before them.
        self.encoder_seq_length = {"Image": 1 + (IMAGE // PATCH) ** 2, "Audio": 1 + LENGTH}.get(kind, LENGTH)
        self.key_length = self.encoder_seq_length

    def get_config(self) -> ours.GreenformerConfig:
        """The configuration."""
        options: dict[str, Any] = {"attention": self.name, "num_labels": LABELS, "vocab_size": VOCABULARY}
        if self.name == "etc":
            options["attention_options"] = {"globals": 2}  # or all positions are global, and no label is read
        if self.kind == "Seq2Seq":
            options |= {"decoder_layers": LAYERS, "decoder_start_token_id": 2}
        elif self.kind in ("Image", "Audio"):
            options |= {"vocab_size": None, "input_features": FEATURES}
        if self.kind == "Image":
            options |= {"image_size": IMAGE, "patch_size": PATCH, "num_channels": CHANNELS}
        return ours.GreenformerConfig(
            hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            intermediate_size=37, max_position_embeddings=32, pad_token_id=0, eos_token_id=1, bos_token_id=2,
            **options,
        )  # fmt: skip

    def prepare_config_and_inputs_for_common(self) -> tuple[ours.GreenformerConfig, dict[str, torch.Tensor]]:
        """The configuration and a batch."""
        if self.kind == "Image":
            return self.get_config(), {"pixel_values": floats_tensor([BATCH, CHANNELS, IMAGE, IMAGE])}
        if self.kind == "Audio":
            return self.get_config(), {"input_values": floats_tensor([BATCH, LENGTH, FEATURES])}
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

    def test_model_get_set_embeddings(self) -> None:
        """Values are read by a linear layer, which that test does not expect."""
        if self.kind in ("Image", "Audio"):
            self.skipTest("no embedding of tokens")
        super().test_model_get_set_embeddings()

    def setUp(self) -> None:
        """Before each test."""
        # Which of ours have no head, and under which name heads hold them: an encoder-decoder holds two.
        MODEL_MAPPING_NAMES["greenformer"] = "GreenformerDecoder" if self.kind == "Decoder" else "GreenformerModel"
        self.model_tester = Tester(self.kind, self.mechanism)

    def _prepare_for_class(self, inputs_dict: Any, model_class: Any, return_labels: bool = False) -> Any:
        inputs, head = copy.deepcopy(inputs_dict), model_class.__name__.removeprefix("Greenformer").removeprefix("For")
        if head == "MultipleChoice" or (head == "SentenceEmbedding" and return_labels):
            inputs = {
                name: x[:, None].expand(-1, CHOICES, -1).contiguous() if torch.is_tensor(x) and x.dim() == 2 else x
                for name, x in inputs.items()
            }
        if not return_labels or head in ("Model", "Decoder", "SentenceEmbedding"):
            return inputs
        zeros = torch.zeros(BATCH, dtype=torch.long)
        if head == "QuestionAnswering":
            return inputs | {"start_positions": zeros, "end_positions": zeros}
        of_all = head.endswith("Classification") and not head.startswith("Token")
        labels = zeros if of_all or head == "MultipleChoice" else zeros[:, None].expand(-1, LENGTH).contiguous()
        return inputs | {"labels": labels} | ({"next_sentence_label": zeros} if head == "PreTraining" else {})


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
                (Ours, GenerationTesterMixin, unittest.TestCase)
                if _kind in ("Decoder", "Seq2Seq")
                else (Ours, unittest.TestCase)
            )
            globals()[_class] = type(_class, _bases, {
                "kind": _kind, "mechanism": _name, "is_encoder_decoder": _kind == "Seq2Seq",
                "all_model_classes": tuple(getattr(ours, each) for each in _classes), "has_attentions": True,
                "test_resize_embeddings": _kind not in ("Image", "Audio"),
                # The kernel of a compressed memory learns from what leaves a memory, and here nothing does.
                "test_all_params_have_gradient": _name != "compressive",
            })  # fmt: skip
