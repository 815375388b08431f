"""Low-rank linear layers: the LED unit, the factorisation of trained weights, and the choice of ranks."""
