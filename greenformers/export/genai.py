"""What OpenVINO GenAI reads beside a language model's file: its tokenizer as programs, and configurations.

`openvino_genai.LLMPipeline` and OpenVINO's model server read a folder with a model that keeps its cache, and write
text from text, without Python's libraries.
"""

import json
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from greenformers.checkpoint.files import line

LIBRARY = "openvino_tokenizers"
PROGRAMS = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
"""Files of the programs from texts to tokens, and back."""

CONFIGURATIONS = ("config.json", "generation_config.json")
TRIED = ("A text, and another one.", "Two words", "3 + 4 = 7; naïve café", "x")
"""Texts that must get the same tokens."""


def add_tokenizer(folder: Path, beside: Path, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Write the tokenizer of a language model beside its file of OpenVINO; what is written is tried.

    Args:
        folder: Folder of the export, with the configurations.
        beside: Folder with the file of OpenVINO.
        tokenizer: The tokenizer, if there is one.

    Returns:
        Empty; or the reason why OpenVINO GenAI cannot read the folder, which is then as it was.
    """
    if tokenizer is None:
        return "the model has no tokenizer"
    if find_spec(LIBRARY) is None:
        return f"{LIBRARY} is not installed, which comes with the extra genai"
    from openvino import save_model
    from openvino_tokenizers import convert_tokenizer

    side = tokenizer.padding_side
    try:
        tokenizer.padding_side = "left"  # the texts of a batch are continued, and so end together
        programs = convert_tokenizer(tokenizer, with_detokenizer=True)
        for program, name in zip(programs, PROGRAMS, strict=True):
            save_model(program, beside / name)
        why = _differs(beside, tokenizer)
    except Exception as error:  # whatever the converter raises for tokenizers that it does not know
        why = f"the tokenizer has no form in OpenVINO: {line(error)}"
    finally:
        tokenizer.padding_side = side
    if why:
        for name in PROGRAMS:
            for path in (beside / name, (beside / name).with_suffix(".bin")):
                path.unlink(missing_ok=True)
        return why
    for name in CONFIGURATIONS:
        if (folder / name).is_file():
            shutil.copy(folder / name, beside / name)
    return ""


@cache
def _core() -> Any:
    """OpenVINO with the operators of its tokenizers, which stays for the reason that `openvino_file.core` tells."""
    import openvino
    import openvino_tokenizers  # noqa: F401  # which makes its operators known

    return openvino.Core()


def _differs(beside: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    """The reason why the programs do not do what the tokenizer does; empty where they do."""
    encode, decode = (_core().compile_model(beside / name, "CPU") for name in PROGRAMS)
    for text in TRIED:
        given: Any = encode([text])["input_ids"]
        expected = tokenizer(text)["input_ids"]
        if given[0].tolist() != list(expected):
            return f"the tokenizer's form in OpenVINO reads {json.dumps(text)} differently"
        back = str(decode(np.array([expected]))["string_output"][0])
        if back.strip() != str(tokenizer.decode(expected, skip_special_tokens=True)).strip():
            return f"the tokenizer's form in OpenVINO writes {json.dumps(text)} differently"
    return ""
