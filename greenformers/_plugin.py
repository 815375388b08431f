"""After `import greenformers`, plain `AutoModel.from_pretrained` loads our networks and changed ones; it is fast.

If `transformers` is loaded already, the plug-in registers at once; else as soon as the parts it registers with are.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def _register_changed() -> None:
    from greenformers.checkpoint.plugin import register

    register()


_LAYERS = "transformers.modeling_layers"


def _register_models() -> None:
    if _LAYERS in sys.modules and not hasattr(sys.modules[_LAYERS], "GradientCheckpointingLayer"):
        return  # half imported, without the base of our layers yet: this is called again once it is complete
    import_module("greenformers.model")


REGISTRIES: dict[str, Callable[[], None]] = {
    "transformers.quantizers.auto": _register_changed,
    "transformers.models.auto.modeling_auto": _register_models,
    _LAYERS: _register_models,
}
"""Parts of transformers, and the function that registers with each as it is loaded."""


def install() -> None:
    """Register now, or when `transformers` is imported."""
    # The finder first: one registration may load what another one waits for.
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name, register in REGISTRIES.items():
        if name in sys.modules:
            register()


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Where the package is imported twice there are two of these, and each would ask the other.
        if fullname not in REGISTRIES or self._looking:
            return None
        self._looking = True
        try:
            specs = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
            spec = next((spec for spec in specs if spec is not None), None)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, REGISTRIES[fullname])
        return spec


class _Loader(Loader):
    """Loads a module as its own loader would, then registers."""

    def __init__(self, loader: Loader, register: Callable[[], None]) -> None:
        self.loader, self.register = loader, register

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.register()
