"""`greenformers cleanse`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from greenformers.cli import _terminal as terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from greenformers.data import Labelled
    from greenformers.data._texts import Texts

ORDER = 65
GROUP = "Train a model of your own"
EXAMPLES = (
    "greenformers cleanse MODEL --texts train.tsv --out suspicious.tsv",
    "greenformers cleanse MODEL --texts train.tsv --folds 1 --share 0.02 --rest cleansed.tsv --out suspicious.tsv",
    "greenformers cleanse MODEL --texts train.tsv --trusted checked.tsv --score influence --out suspicious.tsv",
)


def cleanse(
    model: Annotated[str, typer.Argument(help="Folder of an encoder or classifier of transformers, or its hub name.")],
    texts: Annotated[Path, typer.Option(help="Table .tsv with the columns sentence and label, a whole number from 0.")],
    out: Annotated[Path, typer.Option(help="Table of the suspicious rows that is written, the worst first.")],
    share: Annotated[float, typer.Option(help="Share of the rows that are listed.")] = 0.05,
    rest: Annotated[
        Path | None, typer.Option(help="Table of all other rows that is written, in their order, to train on.")
    ] = None,
    score: Annotated[
        str,
        typer.Option(
            help="Score of a row: margin, confidence, variability, forgetting, self_influence or influence, which "
            "needs --trusted."
        ),
    ] = "margin",
    folds: Annotated[
        int | None,
        typer.Option(
            help="Networks, each trained on all parts of the table but the one that it scores; 1: one that is trained "
            "on all of it, as with --trusted; by default 3.",
        ),
    ] = None,
    trusted: Annotated[
        Path | None, typer.Option(help="Table like TEXTS whose labels are right, for the score influence.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the table, after each of which it is observed.")] = 3,
    batch: Annotated[int, typer.Option(help="Texts a step.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 5e-5,
    length: Annotated[
        int | None,
        typer.Option(
            help="Longest text in tokens; longer texts are cut. By default 128, or the model's own where it is shorter."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of a new head, of dropout, and of the order of the texts.")] = 0,
) -> None:
    """List the rows of a table of texts whose label is probably wrong, and keep the rest to train on.

    The model is trained on the table, and each row is scored by how the
    networks learn it.
    """
    from transformers import set_seed

    from greenformers.checkpoint.pretrained import pretrained
    from greenformers.data._read_texts import every_text
    from greenformers.measure.label_errors import SCORES, estimated_errors, suspicion
    from greenformers.model.positions import reach
    from greenformers.train.cleanse import watch, watch_held_out
    from greenformers.train.schedule import Schedule

    terminal.quiet()
    console = terminal.console()
    folds = (3 if trusted is None else 1) if folds is None else folds
    _check_options(score, epochs, share, folds, trusted)
    schedule = Schedule(
        epochs=epochs, batch_size=batch, learning_rate=learning_rate, seed=seed, save_every=10**9
    )  # only the last weights are written, and left behind
    _check_files(texts, trusted, out, rest)
    rows = every_text(texts)
    data = _labelled(rows, None if trusted is None else every_text(trusted))
    for path in filter(None, (out, rest)):
        if path.exists():
            raise ValueError(f"{path} is there already: name another file")
        terminal.check_writable(path)
    encoder, tokenizer = pretrained(model, needs_tokenizer=True)
    set_seed(seed)
    network = _classifier(encoder, len(data.classes or ()))
    most = reach(network)
    if most is not None and length is not None and length > most:
        raise ValueError(f"length must be at most {most}, the longest input of the model, got {length}")
    options: dict[str, Any] = {"length": min(128, most or 128) if length is None else length, "console": console}
    with terminal.resumable("nothing was written"):
        if folds == 1:
            seen, right = watch(network, data, cast(Any, tokenizer), schedule, **options)
        else:
            seen, right = watch_held_out(network, data, cast(Any, tokenizer), schedule, folds, **options), None
    if folds > 1:
        wrong = estimated_errors(seen.logits.softmax(-1).mean(0), seen.labels)
        console.print(f"about {wrong} of {len(rows)} labels are wrong by confident learning, {wrong / len(rows):.1%}")
    scores = suspicion(score, seen, right)
    worst = scores.argsort(descending=True, stable=True)[: max(1, round(share * len(rows)))].tolist()
    labels, predicted = seen.labels.tolist(), seen.logits.mean(0).argmax(-1).tolist()
    listed = [(i + 2, f"{scores[i].item():.6g}", labels[i], predicted[i], rows.lines[i]) for i in worst]
    _write(out, "line\tscore\tlabel\tpredicted\tsentence", listed)
    about = SCORES[score].about
    console.print(
        f"the {len(worst)} most suspicious of {len(rows)} rows, by {about}: {out}", markup=False, soft_wrap=True
    )
    if rest is not None:
        left = sorted(set(range(len(rows))) - set(worst))
        _write(rest, "sentence\tlabel", [(rows.lines[i], labels[i]) for i in left])
        console.print(f"the other {len(left)} rows: {rest}", markup=False, soft_wrap=True)


def _check_options(score: str, epochs: int, share: float, folds: int, trusted: Path | None) -> None:
    """Raise ValueError where an option is out of range, or not for the score."""
    from greenformers.measure.label_errors import SCORES

    if score not in SCORES:
        raise ValueError(f"score must be one of {', '.join(SCORES)}, got {score!r}")
    if score in ("variability", "forgetting") and epochs < 2:
        raise ValueError(f"epochs must be at least 2 with score {score}, which compares them; got {epochs}")
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    if (score == "influence") != (trusted is not None):
        raise ValueError(f"trusted must be given with score influence, and with no other; the score is {score}")
    if folds < 1 or (folds > 1 and trusted is not None):
        raise ValueError(f"folds must be {'at least 1' if trusted is None else '1 with trusted'}, got {folds}")


def _check_files(texts: Path, trusted: Path | None, out: Path, rest: Path | None) -> None:
    """Raise ValueError where a table is of another kind, or two files are one."""
    from greenformers.data._text_files import suffix

    # What is written are lines of the table, and all of them are scored.
    for path in filter(None, (texts, trusted)):
        if suffix(path) != ".tsv":
            raise ValueError(f"{path} must be a table .tsv with the columns sentence and label")
    files = [path.resolve() for path in filter(None, (texts, trusted, out, rest))]
    if len(set(files)) < len(files):
        raise ValueError("texts, trusted, out and rest must be files of their own: one is named twice")


def _classifier(network: "PreTrainedModel", classes: int) -> "PreTrainedModel":
    """The network as a classifier.

    Raises:
        ValueError: It would get a head of its own, which the changes of its checkpoint know nothing of.
    """
    from greenformers.checkpoint.structure import changes_of
    from greenformers.train.cleanse import classifier_from

    classifier = classifier_from(network, classes)
    changed = [change.name() for change in changes_of(network) if not change.built_by_the_class]
    if changed and classifier is not network:
        raise ValueError(f"model must be a classifier, or an encoder before compression; got one after {changed[0]}")
    return classifier


def _write(path: Path, header: str, rows: "Sequence[tuple[object, ...]]") -> None:
    """Write a table; a sentence holds no tab, as it comes from one."""
    lines = ["\t".join(map(str, row)) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *lines, ""]), encoding="utf-8")


def _labelled(rows: "Texts", trusted: "Texts | None") -> "Labelled":
    """The rows as examples to train on, and trusted ones, if any, to validate on.

    Raises:
        ValueError: A table has no classes, or all its rows have one class.
    """
    from greenformers.data import Examples, Labelled
    from greenformers.data._texts import Texts

    def examples(texts: Texts | None) -> Examples:
        if texts is None:
            return Examples()
        if texts.labels is None or any(len(segments) > 1 for segments in texts.segments):
            raise ValueError(f"{texts.name} must be a table with the columns sentence and label")
        return Examples(list(texts.segments), [int(label) for label in texts.labels])

    train, valid = examples(rows), examples(trusted)
    if len(set(train.labels)) < 2:
        raise ValueError(f"{rows.name} must have rows of at least 2 classes, has 1")
    classes = 1 + int(max(*train.labels, *valid.labels))
    return Labelled(rows.name, tuple(map(str, range(classes))), train, valid, Examples())
