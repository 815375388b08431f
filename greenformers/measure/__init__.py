"""Measures of a network: parameters, FLOPs, latency, peak memory, energy and quality; and the record of a figure."""
