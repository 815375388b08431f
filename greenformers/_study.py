"""Commands that measure and advise. Heavy imports are inside the commands, so that --help answers at once."""

from collections.abc import Callable

COMMANDS: tuple[Callable[..., None], ...] = ()
