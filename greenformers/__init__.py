"""Greenformers: a transformer goes in; a measured, greener transformer comes out.

Public names are loaded on first use, so that `import greenformers` costs nothing.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from greenformers import _plugin

__version__ = version("greenformers")

_HOME = {
    "Attention": "greenformers.attention",
    "Budget": "greenformers.solve.budget",
    "CompressionReport": "greenformers.solve.result",
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
    "auto_fact": "greenformers.compress.auto_fact",
    "compress": "greenformers.compress",
    "load": "greenformers.checkpoint.load",
    "merge": "greenformers.checkpoint.merge",
    "save": "greenformers.checkpoint.save",
    "swap_attention": "greenformers.changes.attention",
    "warm_start": "greenformers.model.warm_start",
    "Record": "greenformers.measure.record",
}

_plugin.install()

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'greenformers' has no attribute {name!r}; it has {', '.join(__all__)}")
    found = import_module(_HOME[name])
    return found if found.__name__.endswith(f"{__name__}.{name}") else getattr(found, name)


def __dir__() -> list[str]:
    return __all__
