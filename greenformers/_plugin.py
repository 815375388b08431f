"""`import greenformers` makes plain `AutoModel.from_pretrained` know compressed networks, and still costs nothing.

If `transformers` is loaded already, the plug-in registers at once; otherwise as soon as the part it registers with is.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

REGISTRY = "transformers.quantizers.auto"


def install() -> None:
    """Register now, or when `transformers` comes."""
    if REGISTRY in sys.modules:
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    from greenformers.checkpoint.plugin import register

    register()


class _Finder(MetaPathFinder):
    _looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Where the package is imported twice there are two of these, and each would ask the other.
        if fullname != REGISTRY or self._looking:
            return None
        self._looking = True
        try:
            specs = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
            spec = next((spec for spec in specs if spec is not None), None)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads what it stands for, then registers."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _register()
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
