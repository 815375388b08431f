"""Speech recognition: sound in, text out. Greenformers thesis (Cahyawijaya 2021), chapter 4."""
