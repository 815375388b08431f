"""Transformer-XL. Dai 2019, arXiv:1901.02860: softmax attention by content and distance, to earlier segments too.

The formula, `reference`, is in `_relative.py` beside its fast form. The segment memory is passed as
keys and values in front of those of the segment: the model keeps the detached inputs of its layers (section 3.2).
Time O(N M D + M d^2), memory O(M d).
"""

from greenformers.attention._relative import Relative
from greenformers.attention._relative import reference as reference


class TransformerXl(Relative):
    """Relative attention to the keys of a segment and of the segment memory before it; bidirectional without memory."""
