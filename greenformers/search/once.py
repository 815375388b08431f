"""Examples that differ: of two halves of a file with a text twice, each would have it."""

from greenformers.data._examples import LEAST, Examples, halves
from greenformers.data._tasks import Task
from greenformers.data._texts import Texts


def once(examples: Examples, task: Task) -> Examples:
    """Examples without texts that were there before: what a search has seen is not to judge it in the end.

    Lines of language models are running text, in which a line may stand twice.

    Args:
        examples: Examples in the order of their file.
        task: Task of the model.
    """
    if not isinstance(examples, Texts) or task in ("causal_lm", "masked_lm"):
        return examples
    first: dict[frozenset[str], int] = {}
    for place, row in enumerate(examples.segments):
        first.setdefault(frozenset(row), place)
    return examples.at([*first.values()])


def halved_once(examples: Examples, task: Task, limit: int) -> tuple[Examples, Examples]:
    """Halves of examples, to search with and to judge by, that have no text in common.

    Args:
        examples: Examples in the order of their file.
        task: Task of the model.
        limit: Largest number of examples in each half.

    Raises:
        ValueError: There are too few examples, or too few that differ.
    """
    different = once(examples, task)
    if len(different) < LEAST <= len(examples):
        raise ValueError(f"{examples.name} has {len(different)} texts that differ, at least {LEAST} are needed")
    return halves(different if len(examples) >= LEAST else examples, limit)
