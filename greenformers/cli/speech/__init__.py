"""Speech recognition with the Low-Rank Transformer (Cahyawijaya 2021, chapter 4)."""

ORDER = 140
GROUP = "Applications"
