"""Speech recognition: sound in, text out. Thesis, chapter 4."""
