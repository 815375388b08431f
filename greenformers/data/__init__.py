"""Data sets, one a file; `load(name, ...)` finds them by file name."""
