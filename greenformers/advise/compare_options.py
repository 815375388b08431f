"""Options of the networks that are compared."""

from dataclasses import dataclass

from greenformers.train.setting import setting


@dataclass(frozen=True)
class Size:
    """Size of the networks that are trained. The help text of each field is its documentation."""

    hidden: int = setting(64, "Width d of the network.")
    layers: int = setting(2, "Number of layers.")
    heads: int = setting(4, "Number of heads, a divisor of the width.")
    feed_forward: int = setting(256, "Width f of the feed-forward blocks.")
    rank: int = setting(16, "Rank of the low-rank linear layers of lrt.")
    k: int = setting(16, "Projected length k of linformer.")
