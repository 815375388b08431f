"""Studies of Cahyawijaya 2021: surroundings of a gene (figure 5.5), pre-training (table 5.2), length (table 5.3)."""

ORDER = 80
