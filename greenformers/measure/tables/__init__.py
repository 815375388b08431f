"""Tables of facts that figures rest on. Each names its source in its first lines."""

from importlib.resources import files


def rows(name: str) -> list[list[str]]:
    """Lines of a table, each split into its columns, without the lines that name its source.

    Args:
        name: Name of a file of this folder, without its ending.
    """
    text = (files(__name__) / f"{name}.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
