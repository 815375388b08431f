"""Genomes: from reads and variants to diplotype tokens, cohorts, and the risk of a disease.

Greenformers thesis, Cahyawijaya 2021, chapter 5.
"""
