"""Genomes: from reads and variants to diplotype tokens, cohorts, and the risk of a disease. Thesis, chapter 5."""
