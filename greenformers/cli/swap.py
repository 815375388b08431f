"""`greenformers swap`."""

from greenformers.cli._compress import swap as swap

ORDER = 70
