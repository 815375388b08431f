"""Changes of a trained network, one a file."""
