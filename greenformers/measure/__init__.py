"""The measures: parameters, FLOPs, latency, peak memory, energy, quality, and the record of a figure."""
