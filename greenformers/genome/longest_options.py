"""Size of the network whose longest sequence is computed. Cahyawijaya 2021, 5.3.1."""

from dataclasses import dataclass

from greenformers.train.setting import setting


@dataclass(frozen=True)
class Size:
    """Size of the network, by default that of Cahyawijaya 2021. The help text of each field documents it."""

    hidden: int = setting(768, "Width d of the network.")
    layers: int = setting(12, "Number of layers.")
    heads: int = setting(12, "Number of heads, a divisor of the width.")
    feed_forward: int = setting(3072, "Width f of the feed-forward blocks.")
    k: int = setting(256, "Projected length k of linformer.")
    rank: int = setting(64, "Rank of the low-rank linear layers of lrt.")
    dropout: float = setting(0.1, "Dropout after the embedding and each block.")
    batch: int = setting(16, "Sequences in a batch.")
