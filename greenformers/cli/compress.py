"""`greenformers compress`."""

from greenformers.cli._compress import compress as compress

ORDER = 60
