"""Low-rank linear maps: the LED unit and, later, how to factorise trained weights and choose ranks."""
