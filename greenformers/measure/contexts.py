"""Contexts in a file of records: each has one line, and the records after it name it by its id.

    {"id": "6f0c2a91d3be", "context": {"command": "greenformers compare", "seed": 0, ...}}
    {"benchmark": "compare", "variant": "lrt", ..., "context": "6f0c2a91d3be"}

Files in which every record holds its context, as in earlier versions, are read too.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Row = dict[str, Any]
"""A line of a file, as JSON has it."""


def id_of(context: Mapping[str, Any]) -> str:
    """The id of a context, the same for equal ones: 48 bits of its SHA-256 in hexadecimal."""
    return hashlib.sha256(json.dumps(context, sort_keys=True).encode()).hexdigest()[:12]


def fold(records: Iterable[Row], ids: Iterable[str] = ()) -> Iterator[Row]:
    """Lines of records, each context once and before the first record that has it; fields that are None are left out.

    Args:
        records: Records with their contexts.
        ids: Ids of contexts that the file holds already.
    """
    written = set(ids)
    for record in records:
        context = record["context"]
        if context:
            name = id_of(context)
            if name not in written:
                written.add(name)
                yield {"id": name, "context": context}
            record = record | {"context": name}
        yield {field: value for field, value in record.items() if value is not None}


def unfold(row: Row, contexts: dict[str, Row]) -> Row | None:
    """A record with its context; None for the line of a context, which is added to `contexts`.

    Args:
        row: A line of the file.
        contexts: Contexts of the lines before, by id.

    Raises:
        ValueError: Raised where the record names a context that no line before it holds.
    """
    if isinstance(row, dict) and row.keys() == {"id", "context"}:
        contexts[row["id"]] = row["context"]
        return None
    if isinstance(row, dict) and isinstance(row.get("context"), str):
        if row["context"] not in contexts:
            raise ValueError(f"its context {row['context']!r} is in no line before it")
        return row | {"context": contexts[row["context"]]}
    return row
