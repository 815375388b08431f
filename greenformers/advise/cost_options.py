"""Options of the command `cost` and its answer: the costs of a base run and of faster variants of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenformers.advise.cost import PUE, Cost, Hardware, Range, estimate, training_flops
from greenformers.advise.efficiency import efficiency, mean_speed_up, measured_speed_ups
from greenformers.advise.published import RUNS, name_of
from greenformers.measure.carbon import grid_intensity
from greenformers.measure.record import read
from greenformers.train.setting import setting, value_of


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command, as typed; None for those that were not given. The help text of each documents it."""

    base: str | None = setting(None, "Published run, such as BERT-base or GPT-3.")
    speedup: str | None = setting(None, "Speed-up over the base run: one number, or by length: 128:2.7,512:1.9.")
    shares: str | None = setting(None, "Shares of the base run's time by length: 128:0.9,512:0.1.")
    records: Path | None = setting(None, "In place of --speedup: file of records of bench or compare.")  # noqa: RUF009
    variant: str | None = setting(None, "Variants of the records, with commas; with --speedup, a name for the run.")
    rank: int | None = setting(None, "Rank of the records to read.")
    where: list[str] | None = setting(None, "Setting of the records to read, such as hidden=768; may be repeated.")  # noqa: RUF009
    parameters: float | None = setting(None, "Number of parameters of the model, in place of --base.")
    tokens: float | None = setting(None, "Number of tokens of the training; FLOPs are 6 for each parameter and token.")
    flops: float | None = setting(None, "FLOPs of the run, in place of --parameters and --tokens.")
    peak: float | None = setting(None, "Peak TFLOP/s of one GPU; 312 if not given, an A100's.")
    utilisation: float | None = setting(None, "Share of the peak that the run reaches; 0.4 if not given.")
    gpus: int | None = setting(None, "Number of GPUs; 1 if not given.")
    watts: float | None = setting(None, "Watts of one GPU with its part of the host; 400 if not given.")
    price: str | None = setting(None, "Price of one GPU in USD an hour: one number, or LOW,HIGH.")
    country: str | None = setting(
        None,
        "Country of the electricity, a 3-letter ISO code; if not given, as published, or USA for an estimated run.",
    )
    pue: float | None = setting(None, "Energy of the data centre over that of its computers; 1.58 if not given.")

    def given(self, *names: str) -> list[str]:
        """Those of some options that were typed, as "--base"; without names, those of all options.

        Args:
            names: Names of options.
        """
        return [f"--{name}" for name in names or vars(self) if getattr(self, name) not in (None, [])]


@dataclass(frozen=True)
class Answer:
    """The costs of one run.

    Attributes:
        cost: Cost of the run.
        efficiency: Factor by which the run is faster than the base run.
        mean: The factor by eq. 3.10 of Cahyawijaya 2021, see `mean_speed_up`; None for a run of one length.
    """

    cost: Cost
    efficiency: float = 1.0
    mean: float | None = None


def answer(options: Options) -> dict[str, Answer]:
    """Costs by name of the run, the base first.

    Raises:
        ValueError: Raised where an option is out of its range, or does not go with the others.
        OSError: Raised where the records cannot be read.
    """
    name, cost = _base(options)
    answers = {name: Answer(cost)}
    for variant, factor, mean in _factors(options):
        answers[f"{name}, {variant}"] = Answer(cost.faster(factor), factor, mean)
    return answers


def _base(options: Options) -> tuple[str, Cost]:
    """The base run: published, or estimated from its FLOPs."""
    counts = options.given("parameters", "tokens", "flops")
    machine = options.given("peak", "utilisation", "gpus", "watts", "price", "pue")
    if options.base is not None and counts:
        raise ValueError(f"--base and {counts[0]} exclude each other: give one of them")
    if counts:
        return "estimated run", _estimated(options)
    if machine:
        raise ValueError(f"{machine[0]} needs --parameters and --tokens, or --flops")
    name = name_of(options.base or "BERT-base")
    cost = RUNS[name].printed
    return name, cost.at(options.country) if options.country else cost


def _estimated(options: Options) -> Cost:
    if options.flops is not None:
        if both := options.given("parameters", "tokens"):
            raise ValueError(f"--flops and {both[0]} exclude each other: give one of them")
        flops = options.flops
    else:
        if options.parameters is None or options.tokens is None:
            raise ValueError("--parameters and --tokens need each other: give both")
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
        raise ValueError("--speedup and --records exclude each other: give one of them")
    if options.records is None and (alone := options.given("rank", "where")):
        raise ValueError(f"{alone[0]} needs --records")
    if options.records is not None:
        return _measured(options, options.records)
    if options.speedup is None:
        if alone := options.given("shares", "variant"):
            raise ValueError(f"{alone[0]} needs --speedup or --records")
        return []
    name = options.variant or "faster"
    if ":" not in options.speedup:
        if options.shares is not None:
            raise ValueError("--shares needs speed-ups by length, such as --speedup 128:2.7,512:1.9")
        return [(name, _number("speedup", options.speedup), None)]
    return [(name, *_both(_by_length("speedup", options.speedup), options))]


def _measured(options: Options, file: Path) -> list[tuple[str, float, float | None]]:
    if options.variant is None:
        raise ValueError("--records needs --variant, the names of variants in the records")
    records = read(file)
    lengths = None if options.shares is None else list(_by_length("shares", options.shares))
    where: dict[str, Any] = {} if options.rank is None else {"rank": options.rank}
    for text in options.where or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"where must be name=value, got {text!r}")
        where[name] = value_of(value)
    names = [name.strip() for name in options.variant.split(",")]
    ups = {name: measured_speed_ups(records, name, lengths=lengths, where=where) for name in names}
    return [(name, *_both(ups[name], options)) for name in names]


def _both(speed_ups: Mapping[int, float], options: Options) -> tuple[float, float | None]:
    """Efficiency, and, where there are several lengths, the mean speed-up, which differs from it."""
    if options.shares is not None:
        shares = _by_length("shares", options.shares)
    elif len(speed_ups) == 1:
        shares = dict.fromkeys(speed_ups, 1.0)
    else:
        lengths = ", ".join(map(str, speed_ups))
        raise ValueError(f"--shares must say how much of the base's time each length takes: {lengths}")
    return efficiency(speed_ups, shares), mean_speed_up(speed_ups, shares) if len(shares) > 1 else None


def _by_length(name: str, text: str) -> dict[int, float]:
    numbers: dict[int, float] = {}
    for pair in text.split(","):
        length, colon, value = (word.strip() for word in pair.partition(":"))
        if not colon or not length.isdecimal() or int(length) < 1:
            raise ValueError(f"{name} must be LENGTH:NUMBER, with commas between; got {text!r}")
        if int(length) in numbers:
            raise ValueError(f"{name} has length {length} twice: {text!r}")
        numbers[int(length)] = _number(name, value)
    return numbers


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
