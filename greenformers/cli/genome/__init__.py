"""From reads and variants to diplotypes and their tokens (thesis, chapter 5)."""

ORDER = 150
GROUP = "Applications"
