"""`greenformers compress`: a model folder in, a smaller one out, with proof of what it lost."""

import copy
import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from greenformers.compress.budget import Budget
from greenformers.compress.compress import compress
from greenformers.compress.heal import Healing, heal
from greenformers.compress.load import check_local, check_weights, line, model_class, read_json
from greenformers.compress.quality import judge
from greenformers.compress.result import CompressionReport
from greenformers.compress.save import check_target, save
from greenformers.compress.side_by_side import measured, on_tokens
from greenformers.compress.texts import Texts, batches, read_texts, task_of
from greenformers.lowrank.factorize import CALIBRATED, SOLVERS
from greenformers.measure.energy import EnergyMeter
from greenformers.measure.record import METRICS, Record, with_ratios
from greenformers.train.run import Stopped

DENSE, LOW_RANK, HEALED = "dense", "low rank", "healed"
TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "*.model")


@dataclass(frozen=True)
class Wanted:
    """What the command was asked for; the flags of `greenformers compress`, where they are explained."""

    model: str
    out: Path
    budget: Budget
    solver: str
    select: Sequence[str] | None
    calibrate: Path | None
    limit: int
    length: int
    evaluate: Path | None
    lengths: Sequence[int]
    only_if_faster: bool
    multiple: int | None
    seed: int
    country: str
    heal: Healing | None = None
    heal_texts: Path | None = None


def run(
    wanted: Wanted, about: dict[str, Any], progress: Callable[[str, float], None]
) -> tuple[CompressionReport, list[Record]]:
    """Compress, measure both models, save.

    Raises:
        ValueError: what a user can mend.
        OSError: a file that cannot be read or written.
        Stopped: a signal ended healing early; the same call goes on with it.
    """
    check_target(wanted.out)
    for name in ("limit", "length"):
        if getattr(wanted, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(wanted, name)}")
    if wanted.solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}; got {wanted.solver!r}")
    if wanted.solver in CALIBRATED and wanted.calibrate is None:
        raise ValueError(f"solver {wanted.solver!r} needs texts: name a file with --calibrate")
    if wanted.lengths:
        EnergyMeter(wanted.country)  # which knows the country, or says now that it does not
    if wanted.heal_texts is not None and wanted.heal is None:
        raise ValueError("texts to heal with go with a number of steps: --heal")
    taught = wanted.heal_texts or wanted.calibrate
    if wanted.heal is not None and taught is None:
        raise ValueError("healing needs texts: name a file with --heal-texts or --calibrate")
    lessons = None if wanted.heal is None or taught is None else read_texts(taught)
    seen = None if wanted.calibrate is None else read_texts(wanted.calibrate)
    judged = None if wanted.evaluate is None else read_texts(wanted.evaluate)
    dense, tokenizer = pretrained(wanted.model, needs_tokenizer=any((seen, judged, lessons)))
    calibration = None if seen is None or tokenizer is None else _calibration(seen, tokenizer, dense, wanted)
    example: Any = None
    lengths = [*wanted.lengths, *([] if seen is None and judged is None else [wanted.length])]
    if wanted.budget.of != "parameters" or wanted.only_if_faster:
        lengths.append(max(wanted.lengths, default=128))
        example = {"input_ids": torch.zeros(8, lengths[-1], dtype=torch.long)}
    _try(dense, max(lengths, default=0))
    small = copy.deepcopy(dense)
    report = compress(
        small, wanted.budget, solver=wanted.solver, select=wanted.select, calibration=calibration, example=example,
        multiple=wanted.multiple, only_if_faster=wanted.only_if_faster, seed=wanted.seed, progress=progress,
    )  # fmt: skip
    if all(layer.rank is None for layer in report.layers):
        raise ValueError("no map became low rank: the budget, or what is faster, leaves all of them dense")
    models = {DENSE: dense, LOW_RANK: small}
    if wanted.heal is not None and lessons is not None and tokenizer is not None:
        small = copy.deepcopy(small)
        _healed(small, dense, lessons, tokenizer, wanted, progress)
        models[HEALED] = small
    records: list[Record] = []
    if judged is not None and tokenizer is not None:
        progress("judging", 0.0)
        records = _judged(models, judged, tokenizer, wanted, about)
        progress("judging", 1.0)
    progress("measuring", 0.0)
    sizes = {DENSE: _bytes(dense), LOW_RANK: _bytes(small)}
    vocabulary = small.config.get_text_config().vocab_size if wanted.lengths else 1
    costs = measured(  # healing changes none
        {DENSE: dense, LOW_RANK: small}, sizes, wanted.lengths, vocabulary=vocabulary, country=wanted.country,
        about=about,
    )  # fmt: skip
    progress("measuring", 1.0)
    records = with_ratios([*costs, *records], to=DENSE)
    save(small, wanted.out, report, card=_card(wanted, records), tokenizer=tokenizer)
    shutil.rmtree(_checkpoints(wanted), ignore_errors=True)
    return report, records


def _checkpoints(wanted: Wanted) -> Path:
    """Where those of a healing are, while it lasts: beside the model to be, with what tells it from others."""
    about = repr((wanted.model, wanted.budget, wanted.solver, wanted.select, wanted.seed, wanted.length, wanted.heal))
    return wanted.out.with_name(f"{wanted.out.name}.healing-{hashlib.sha256(about.encode()).hexdigest()[:8]}")


def _healed(
    small: PreTrainedModel, dense: PreTrainedModel, lessons: Texts, tokenizer: PreTrainedTokenizerBase,
    wanted: Wanted, progress: Callable[[str, float], None],
) -> None:  # fmt: skip
    assert wanted.heal is not None
    history = heal(
        small, dense, lessons.lines, tokenizer, wanted.heal, length=wanted.length, folder=_checkpoints(wanted),
        resume=True, progress=progress,
    )  # fmt: skip
    if history.stopped is not None:
        raise Stopped(history.stopped)


def pretrained(name: str, needs_tokenizer: bool = False) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """A model of a local folder, without any network, or of the hub; weights in safetensors, no code of its own.

    Raises:
        ValueError: damaged or foreign files; a model that asks for code of its own; no tokenizer where one is needed.
        OSError: not found.
    """
    local = Path(name).is_dir()
    if local:
        check_local(read_json(Path(name) / "config.json"), Path(name))
        check_weights(Path(name))
    elif Path(name).exists() or name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"{name} is not a folder with a model")
    options: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(name, **options)
    except Exception as error:
        raise ValueError(f"{name} has no configuration that can be read: {line(error)}") from error
    if local and getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{name} is compressed already; greenformers.load and greenformers.merge make it dense again")
    names = config.architectures or []
    cls = model_class({"architectures": names}, Path(name))
    try:
        found: Any = cls.from_pretrained(name, use_safetensors=True, output_loading_info=True, **options)
    except OSError as error:
        raise OSError(line(error)) from error
    except Exception as error:  # whatever `transformers` makes of files that anyone may have written
        raise ValueError(f"{name}: the weights do not fit the configuration: {line(error)}") from error
    model, info = found
    if info["missing_keys"]:
        raise ValueError(
            f"{name} lacks {len(info['missing_keys'])} weights, {sorted(info['missing_keys'])[0]} among them"
        )
    tokenizer = None
    # Where there is no file of it, `transformers` may make one up that knows no word.
    if not local or any(found for pattern in TOKENIZER for found in Path(name).glob(pattern)):
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, **options)
        except Exception as error:
            raise ValueError(f"{name} has no tokenizer that can be read: {line(error)}") from error
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
    if needs_tokenizer:
        _check_tokenizer(tokenizer, model, name)
    return model.eval(), tokenizer


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase | None, model: PreTrainedModel, name: str) -> None:
    if tokenizer is None:
        raise ValueError(f"{name} has no tokenizer, which texts need")
    table: Any = model.get_input_embeddings()
    if len(tokenizer) > table.num_embeddings:
        raise ValueError(f"the tokenizer of {name} has {len(tokenizer)} tokens, the model {table.num_embeddings}")


def _try(model: PreTrainedModel, length: int) -> None:
    """See that a model takes so many tokens, before the work and not after it."""
    if length:
        try:
            with torch.inference_mode():
                on_tokens(model, length, vocabulary=1, size=1)()
        except Exception as error:  # whatever networks raise that take no tokens, or fewer
            raise ValueError(
                f"the model cannot be run on {length} tokens, see --length and --lengths: {line(error)}"
            ) from error


def _calibration(
    seen: Texts, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, wanted: Wanted
) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(wanted.seed)
    lines = seen.lines
    chosen = torch.randperm(len(lines), generator=generator)[: wanted.limit].sort().values.tolist()
    return batches([lines[place] for place in chosen], tokenizer, task_of(model), wanted.length)


def _judged(
    models: dict[str, PreTrainedModel],
    texts: Texts,
    tokenizer: PreTrainedTokenizerBase,
    wanted: Wanted,
    about: dict[str, Any],
) -> list[Record]:
    return [
        Record(
            "compress", name, {"texts": texts.name}, metric, value, METRICS[metric].unit, interval=interval,
            to=DENSE if interval else None, context=about,
        )
        for name, scores in judge(models, texts, tokenizer, wanted.length).items()
        for metric, (value, interval) in scores.items()
    ]  # fmt: skip


def _bytes(model: PreTrainedModel) -> int:
    """Of the weights as saved: tied ones once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) + sum(
        buffer.numel() * buffer.element_size() for name, buffer in model.named_buffers() if name in model.state_dict()
    )


def _card(wanted: Wanted, records: Sequence[Record]) -> str:
    lines = [
        "## Before and after",
        "",
        f"Made from `{Path(wanted.model).name}` with solver `{wanted.solver}`, budget `{wanted.budget}`.",
        "",
        "| | setting | dense | low rank |" + " healed |" * (wanted.heal is not None),
        "|---|---|---:|---:|" + "---:|" * (wanted.heal is not None),
    ]
    values: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        setting = ", ".join(f"{key} {value}" for key, value in record.setting.items())
        kind = "" if record.source == "measured" else f" ({record.source})"
        text = f"{record.value:,.4g} {record.unit}{kind}".strip()
        values.setdefault((METRICS[record.metric].label, setting), {})[record.variant] = text
    names = [DENSE, LOW_RANK, *([HEALED] if wanted.heal is not None else [])]
    for (label, at), row in values.items():
        lines.append(f"| {label} | {at} | " + " | ".join(row.get(name, "") for name in names) + " |")
    return "\n".join(lines)
