"""Compress a trained network: find its maps, factorise them within a budget, save and reload what comes out.

`greenformers.compress` is this package and the verb: calling it is calling `compress.compress`.
"""

import sys
from types import ModuleType
from typing import Any


class _Verb(ModuleType):
    """A package that is called like the function it is named after: an import of either must not hide the other."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `greenformers.compress.compress.compress`."""
        from greenformers.compress.compress import compress

        return compress(*args, **kwargs)


sys.modules[__name__].__class__ = _Verb
