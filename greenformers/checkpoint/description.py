"""Where a network differs from the one that its class builds, as stored in its configuration.

This file is read while `transformers` itself is still loading (see `greenformers._plugin`), so it imports little of it.
"""

from typing import Any

from transformers.utils.quantization_config import QuantizationConfigMixin

NAME = "greenformers"

STRUCTURE = "greenformers.json"
"""File with the description of a network that is no model of `transformers`, which has it in `config.json`."""


class Description(QuantizationConfigMixin):
    """The part of a model's configuration that says where the model differs from the network its class builds.

    Args:
        changes: Description of the network by each change (`Change.describe`), by name.
        order: Names in the order in which the changes were applied, which a file with sorted keys would lose.
        guards: Names of the weights that are written with an additional dimension, see `greenformers.checkpoint.guard`.

    Raises:
        ValueError: The description is not of this form, or names an unknown change.
    """

    def __init__(self, changes: Any = None, order: Any = None, guards: Any = None, **_: Any) -> None:
        from greenformers.changes import names

        self.quant_method = NAME  # type: ignore[assignment]
        self.changes: dict[str, Any] = {} if changes is None else changes
        if not isinstance(self.changes, dict):
            raise ValueError("the changes of a network must be described by name")
        for name in self.changes:
            if name not in names():
                raise ValueError(f"{name!r} is not a change; the known ones are {', '.join(names())}")
        self.order: list[str] = list(self.changes) if order is None else order
        if not isinstance(self.order, list) or sorted(map(str, self.order)) != sorted(self.changes):
            raise ValueError("the order of the changes of a network must hold the name of each of them once")
        self.guards: list[str] = [] if guards is None else guards
        if not isinstance(self.guards, list) or not all(isinstance(name, str) for name in self.guards):
            raise ValueError("the guards of a network must be a list of names of weights")

    @classmethod
    def read(cls, described: dict[str, Any]) -> "Description":
        """The description in a configuration, which may be from an untrusted file.

        Raises:
            ValueError: The description is not of this form.
        """
        return cls(described.get("changes"), described.get("order"), described.get("guards"))

    def as_dict(self) -> dict[str, Any]:
        """The description as JSON holds it."""
        return {"changes": self.changes, "order": self.order, "guards": self.guards}

    @property
    def empty(self) -> bool:
        """True where nothing differs."""
        return not self.changes
