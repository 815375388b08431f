"""What the command `cost` was asked, and its answer: a base run, and variants of it that are faster."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenformers.advise.cost import PUE, Cost, Hardware, Range, estimate, training_flops
from greenformers.advise.efficiency import efficiency, mean_speed_up, measured_speed_ups
from greenformers.advise.published import RUNS, name_of
from greenformers.measure.carbon import grid_intensity
from greenformers.measure.record import read
from greenformers.train.settings import setting, value_of


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command, as typed; None for what was not given. The help text of each is its documentation."""

    base: str | None = setting(None, "Published run, such as BERT-base or GPT-3.")
    speedup: str | None = setting(None, "Times faster than the base, by length: 128:2.7,512:1.9; or one factor.")
    shares: str | None = setting(None, "Of the base's time, by length: 128:0.9,512:0.1.")
    records: Path | None = setting(None, "In place of --speedup: records of bench or compare.")  # noqa: RUF009
    variant: str | None = setting(None, "Whose speed-ups of the records, with commas; or a name for --speedup.")
    rank: int | None = setting(None, "Only records of this rank.")
    where: list[str] | None = setting(None, "Only records of this setting, such as hidden=768; may be repeated.")  # noqa: RUF009
    parameters: float | None = setting(None, "In place of --base: parameters of the model.")
    tokens: float | None = setting(None, "Tokens it is trained on; FLOPs are 6 per parameter.")
    flops: float | None = setting(None, "In place of both: FLOPs of the run.")
    peak: float | None = setting(None, "TFLOP/s of one GPU; 312 if not given, an A100's.")
    utilisation: float | None = setting(None, "Share of the peak reached; 0.4 if not given.")
    gpus: int | None = setting(None, "How many; 1 if not given.")
    watts: float | None = setting(None, "Of one GPU with its part of the host; 400 if not given.")
    price: str | None = setting(None, "USD an hour of one GPU: one number, or LOW,HIGH.")
    country: str | None = setting(None, "Whose electricity: a 3-letter ISO code; as published, or else USA.")
    pue: float | None = setting(None, "Data centre's energy over its computers'; else 1.58.")

    def given(self, *names: str) -> list[str]:
        """Which of these options were typed, as typed; without names, which of all."""
        return [f"--{name}" for name in names or vars(self) if getattr(self, name) not in (None, [])]


@dataclass(frozen=True)
class Answer:
    """The costs of one run.

    Attributes:
        cost: of the run.
        efficiency: how much faster than the base it is.
        mean: the same as thesis eq. 3.10 prints it, where the run has several lengths.
    """

    cost: Cost
    efficiency: float = 1.0
    mean: float | None = None


def answer(options: Options) -> dict[str, Answer]:
    """Costs by name of the run, the base first.

    Raises:
        ValueError: an option is out of its range, or does not go with the others.
        OSError: the records cannot be read.
    """
    name, cost = _base(options)
    found = {name: Answer(cost)}
    for variant, factor, mean in _factors(options):
        found[f"{name}, {variant}"] = Answer(cost.faster(factor), factor, mean)
    return found


def _base(options: Options) -> tuple[str, Cost]:
    """The base run: published, or estimated from its FLOPs."""
    counts = options.given("parameters", "tokens", "flops")
    machine = options.given("peak", "utilisation", "gpus", "watts", "price", "pue")
    if options.base is not None and counts:
        raise ValueError(f"--base and {counts[0]} exclude each other")
    if counts:
        return "estimated run", _estimated(options)
    if machine:
        raise ValueError(f"{machine[0]} goes with --parameters and --tokens, or with --flops")
    name = name_of(options.base or "BERT-base")
    cost = RUNS[name].printed
    return name, cost.at(options.country) if options.country else cost


def _estimated(options: Options) -> Cost:
    if options.flops is not None:
        if both := options.given("parameters", "tokens"):
            raise ValueError(f"--flops and {both[0]} exclude each other")
        flops = options.flops
    else:
        if options.parameters is None or options.tokens is None:
            raise ValueError("--parameters and --tokens go together")
        flops = training_flops(options.parameters, options.tokens)
    typed = {
        "peak": options.peak,
        "utilisation": options.utilisation,
        "devices": options.gpus,
        "watts": options.watts,
        "usd_per_hour": None if options.price is None else _price(options.price),
    }
    hardware = Hardware(**{name: value for name, value in typed.items() if value is not None})  # type: ignore[arg-type]
    pue = PUE if options.pue is None else options.pue
    return estimate(flops, hardware, pue=pue, intensity=grid_intensity(options.country or "USA"))


def _factors(options: Options) -> list[tuple[str, float, float | None]]:
    """Name, efficiency and mean speed-up of each variant."""
    if options.speedup is not None and options.records is not None:
        raise ValueError("--speedup and --records exclude each other")
    if options.records is None and (alone := options.given("rank", "where")):
        raise ValueError(f"{alone[0]} goes with --records")
    if options.records is not None:
        return _measured(options, options.records)
    if options.speedup is None:
        if alone := options.given("shares", "variant"):
            raise ValueError(f"{alone[0]} goes with --speedup or --records")
        return []
    name = options.variant or "faster"
    if ":" not in options.speedup:
        if options.shares is not None:
            raise ValueError("--shares goes with speed-ups by length, such as --speedup 128:2.7,512:1.9")
        return [(name, _number("speedup", options.speedup), None)]
    return [(name, *_both(_by_length("speedup", options.speedup), options))]


def _measured(options: Options, file: Path) -> list[tuple[str, float, float | None]]:
    if options.variant is None:
        raise ValueError("--records goes with --variant, the name of the variant in them")
    found = read(file)
    lengths = None if options.shares is None else list(_by_length("shares", options.shares))
    where: dict[str, Any] = {} if options.rank is None else {"rank": options.rank}
    for text in options.where or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"where must be name=value, got {text!r}")
        where[name] = value_of(value)
    names = [name.strip() for name in options.variant.split(",")]
    ups = {name: measured_speed_ups(found, name, lengths=lengths, where=where) for name in names}
    return [(name, *_both(ups[name], options)) for name in names]


def _both(speed_ups: Mapping[int, float], options: Options) -> tuple[float, float | None]:
    """Efficiency, and the mean speed-up where it differs from that: at several lengths."""
    if options.shares is not None:
        shares = _by_length("shares", options.shares)
    elif len(speed_ups) == 1:
        shares = dict.fromkeys(speed_ups, 1.0)
    else:
        lengths = ", ".join(map(str, speed_ups))
        raise ValueError(f"--shares must say how much of the base's time each length takes: {lengths}")
    return efficiency(speed_ups, shares), mean_speed_up(speed_ups, shares) if len(shares) > 1 else None


def _by_length(name: str, text: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for pair in text.split(","):
        length, colon, value = (word.strip() for word in pair.partition(":"))
        if not colon or not length.isdecimal() or int(length) < 1:
            raise ValueError(f"{name} must be LENGTH:NUMBER, with commas between; got {text!r}")
        if int(length) in found:
            raise ValueError(f"{name} has length {length} twice: {text!r}")
        found[int(length)] = _number(name, value)
    return found


def _price(text: str) -> Range:
    """A price, or the low and the high one with a comma between."""
    words = text.split(",")
    if len(words) > 2:
        raise ValueError(f"price must be one number or LOW,HIGH; got {text!r}")
    return Range(_number("price", words[0]), _number("price", words[-1]))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {text!r}") from None
