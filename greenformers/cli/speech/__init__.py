"""Speech recognition with the Low-Rank Transformer (thesis, chapter 4)."""

ORDER = 140
GROUP = "Applications"
