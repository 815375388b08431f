"""Greenformers: a transformer goes in; a measured, greener transformer comes out.

Public names are loaded on first use, so that `import greenformers` costs nothing.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

__version__ = version("greenformers")

_HOME = {
    "Attention": "greenformers.attention",
    "Shape": "greenformers.attention",
    "build": "greenformers.attention",
    "names": "greenformers.attention",
    "LED": "greenformers.lowrank.linear",
    "GreenformerConfig": "greenformers.model",
    "GreenformerModel": "greenformers.model",
    "GreenformerForCausalLM": "greenformers.model",
    "GreenformerForMaskedLM": "greenformers.model",
    "GreenformerForSeq2SeqLM": "greenformers.model",
    "GreenformerForSequenceClassification": "greenformers.model",
    "GreenformerForTokenClassification": "greenformers.model",
    "Record": "greenformers.measure.record",
}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'greenformers' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
