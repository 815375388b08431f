"""A changed network written to a folder and read back."""
