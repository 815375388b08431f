"""From reads and variants to diplotypes, their tokens, and the risk of a disease (Cahyawijaya 2021, chapter 5)."""

ORDER = 150
GROUP = "Applications"
