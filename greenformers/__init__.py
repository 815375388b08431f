"""Greenformers: a transformer goes in; a measured, greener transformer comes out.

Public names are loaded on first use, so that `import greenformers` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from greenformers import _plugin
from greenformers.compress import compress
from greenformers.export import export
from greenformers.static import static

if TYPE_CHECKING:
    __version__: str
    from greenformers.attention import Attention, Shape, build, names
    from greenformers.changes._report import CompressionReport
    from greenformers.checkpoint.load import load
    from greenformers.checkpoint.merge import merge
    from greenformers.checkpoint.save import save
    from greenformers.compress.auto_fact import auto_fact
    from greenformers.lowrank.linear import LED
    from greenformers.measure.record import Record
    from greenformers.model import (
        GreenformerConfig,
        GreenformerForAudioClassification,
        GreenformerForCausalLM,
        GreenformerForImageClassification,
        GreenformerForMaskedLM,
        GreenformerForMultipleChoice,
        GreenformerForPreTraining,
        GreenformerForQuestionAnswering,
        GreenformerForSentenceEmbedding,
        GreenformerForSeq2SeqLM,
        GreenformerForSequenceClassification,
        GreenformerForTokenClassification,
        GreenformerModel,
    )
    from greenformers.model.warm_start import to_transformers, warm_start
    from greenformers.search.run import find_recipe
    from greenformers.solve.budget import Budget

_HOME = {
    "Attention": "greenformers.attention",
    "Budget": "greenformers.solve.budget",
    "CompressionReport": "greenformers.changes._report",
    "Shape": "greenformers.attention",
    "build": "greenformers.attention",
    "names": "greenformers.attention",
    "LED": "greenformers.lowrank.linear",
    "find_recipe": "greenformers.search.run",
    "GreenformerConfig": "greenformers.model",
    "GreenformerModel": "greenformers.model",
    "GreenformerForCausalLM": "greenformers.model",
    "GreenformerForAudioClassification": "greenformers.model",
    "GreenformerForImageClassification": "greenformers.model",
    "GreenformerForMultipleChoice": "greenformers.model",
    "GreenformerForPreTraining": "greenformers.model",
    "GreenformerForQuestionAnswering": "greenformers.model",
    "GreenformerForSentenceEmbedding": "greenformers.model",
    "GreenformerForMaskedLM": "greenformers.model",
    "GreenformerForSeq2SeqLM": "greenformers.model",
    "GreenformerForSequenceClassification": "greenformers.model",
    "GreenformerForTokenClassification": "greenformers.model",
    "auto_fact": "greenformers.compress.auto_fact",
    "load": "greenformers.checkpoint.load",
    "merge": "greenformers.checkpoint.merge",
    "save": "greenformers.checkpoint.save",
    "to_transformers": "greenformers.model.warm_start",
    "warm_start": "greenformers.model.warm_start",
    "Record": "greenformers.measure.record",
}

_plugin.install()

__all__ = [
    "LED", "Attention", "Budget", "CompressionReport", "GreenformerConfig", "GreenformerForAudioClassification",
    "GreenformerForCausalLM", "GreenformerForImageClassification", "GreenformerForMaskedLM",
    "GreenformerForMultipleChoice", "GreenformerForPreTraining", "GreenformerForQuestionAnswering",
    "GreenformerForSentenceEmbedding", "GreenformerForSeq2SeqLM", "GreenformerForSequenceClassification",
    "GreenformerForTokenClassification", "GreenformerModel", "Record", "Shape", "__version__", "auto_fact", "build",
    "compress", "export", "find_recipe", "load", "merge", "names", "save", "static", "to_transformers",
    "warm_start",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("greenformers")
    if name not in _HOME:
        raise AttributeError(f"module 'greenformers' has no attribute {name!r}; it has {', '.join(sorted(__all__))}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
