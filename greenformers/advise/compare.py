"""Variants side by side: trained alike on real images, then measured at that size and as one layer of BERT-base's."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from math import isfinite
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import set_seed

from greenformers.advise.compare_options import Size
from greenformers.advise.unfinished import Unfinished
from greenformers.data import Splits
from greenformers.measure.costs import INFERENCE, TRAINING, Subject, costs
from greenformers.measure.energy import EnergyMeter
from greenformers.measure.narrower import controlled
from greenformers.measure.quality import correct, paired_difference, predict
from greenformers.measure.record import Record, with_ratios
from greenformers.model import GreenformerConfig, GreenformerForSequenceClassification
from greenformers.model.block import layer_of
from greenformers.model.stack import run
from greenformers.model.variant import control, slots
from greenformers.train.classification import ImageClassification
from greenformers.train.fit import History, fit
from greenformers.train.low_rank import check, is_low_rank
from greenformers.train.run import Stopped
from greenformers.train.schedule import Schedule

Progress = Callable[[str, float], None]

USUAL = ("transformer", "lrt", "narrow", "linformer", "lrt+linformer")
"""The variants that are compared where none is named."""
BASELINE = "transformer"
EAGER = "transformer (eager)"
# One layer of BERT-base, the size of the Greenformers thesis (Cahyawijaya 2021, 3.2), on short and on long sequences.
FULL_SIZE: dict[str, Any] = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
FULL_SIZE_RANK, FULL_SIZE_K = 64, 128
FULL_SIZE_INPUTS = ((128, 32), (4096, 1))
"""Length and batch of each input of the layer, of 4096 tokens."""


class Network(Size):
    """Size of the networks that are trained, and the networks themselves."""

    def config(self, variant: str, data: Splits) -> GreenformerConfig:
        """The configuration of one variant for a data set of images.

        Args:
            variant: Name of the variant.
            data: Labelled images.

        Raises:
            ValueError: Raised where there is no such variant, or a size is out of range.
        """
        if self.hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {self.hidden}")
        task = ImageClassification(data)
        config = task.config(
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.feed_forward,
            # Short runs on small data learn too little, not too much.
            hidden_dropout_prob=0.0,
            **slots(variant, rank=self.rank, attention_size=self.k, narrow=True),
        )
        example = data.train[0]["input_values"][None]
        return controlled(variant, config, task.build, lambda model, _: model(input_values=example))

    def build(self, variant: str, data: Splits, seed: int) -> GreenformerForSequenceClassification:
        """A model of one variant with random weights.

        Args:
            variant: Name of the variant.
            data: Labelled images.
            seed: Seed of the weights.

        Raises:
            ValueError: Raised as by `config`.
        """
        set_seed(seed)
        return GreenformerForSequenceClassification(self.config(variant, data))


def usual(data: Splits, network: Network, told: Callable[[str], None]) -> list[str]:
    """The variants that are compared where none is named, without controls of lrt that there are not at these sizes.

    Args:
        data: Labelled images.
        network: Size of the networks.
        told: Function that is told which control is left out, and why.

    Raises:
        ValueError: Raised where a size is out of range.
    """
    names = []
    for name in USUAL:
        if control(name) is not None:
            network.config("lrt", data)  # raises where no variant of lrt can be
            try:
                network.config(name, data)
            except ValueError as error:
                told(f"{name} is left out: {error}")
                continue
        names.append(name)
    return names


def compare(
    data: Splits,
    variants: Iterable[str],
    network: Network,
    schedule: Schedule,
    *,
    country: str = "USA",
    full_size: bool = True,
    about: dict[str, Any],
    console: Console,
    unfinished: Unfinished,
    progress: Progress = lambda *_: None,
) -> list[Record]:
    """Train every variant with the same seed, schedule and data, and measure all of them.

    Every trained network and every measurement is stored until the caller removes it, so that after a stop the same
    call goes on with the rest. A network whose training a signal stopped is trained anew, as its time and energy are
    those of one training.

    Args:
        data: Labelled images.
        variants: Names of variants, see `greenformers.model.variant`; "transformer" is added if it is not among them.
        network: Size of the networks.
        schedule: Schedule of the training; its low_rank_training is for the variants that have low-rank layers.
        country: Country of the electricity, a 3-letter ISO code.
        full_size: Whether one layer of d 768 is measured too.
        about: Context of the records, see `greenformers.measure.record.context`.
        console: Console that shows the progress of training.
        unfinished: Folder of the parts that are done.
        progress: Function that is called with a text on the measurement and the share of it that is done.

    Returns:
        Records, each with its ratio to the Transformer.

    Raises:
        ValueError: Raised where an option is out of range; nothing has been trained then.
        OSError: Raised where a part that is done cannot be written.
        Stopped: Raised where a signal ended a training early; the same call goes on.
    """
    names = list(dict.fromkeys([BASELINE, *variants]))
    setting = {
        "at": "demo",
        "data": data.name,
        "length": data.length + 1,
        "batch": schedule.batch_size,
        "hidden": network.hidden,
        "layers": network.layers,
    }
    EnergyMeter(country)
    models = {name: network.build(name, data, schedule.seed) for name in names}
    schedules = _schedules(models, schedule, ImageClassification(data))
    schedule.stream(ImageClassification(data))  # raises where a batch is larger than the training set
    sizes = {"train": len(data.train), "test": len(data.test)}
    settled = {key: value for key, value in about.items() if key != "time"}
    unfinished.begin([names, asdict(network), asdict(schedule), setting, sizes, country, full_size, settled])
    records: list[Record] = []
    right: dict[str, Tensor] = {}
    for number, (name, model) in enumerate(models.items()):
        part = unfinished.records(number, about)
        if part is None:
            part, right[name] = _learnt(name, model, data, schedules[name], setting, right, country, about, console)
            unfinished.keep(number, part, model, right[name])
        else:
            right[name] = unfinished.load(number, model)
            console.print(f"{name:<16} trained before")
        records += part
    measures: dict[str, Callable[..., list[Record]]] = {
        "measuring the trained models": partial(_at_demo_size, models, data, setting, about)
    }
    for length, batch in FULL_SIZE_INPUTS if full_size else ():
        words = f"measuring one layer of d {FULL_SIZE['hidden_size']} at N {length}"
        device = models[BASELINE].device
        measures[words] = partial(_at_full_size, names, length, batch, schedule.seed, device, about)
    for number, (words, measure) in enumerate(measures.items(), start=len(models)):
        part = unfinished.records(number, about)
        if part is None:
            part = measure(partial(progress, words))
            unfinished.keep(number, part)
        records += part
    return with_ratios(records, to=BASELINE)


def _schedules(
    models: Mapping[str, GreenformerForSequenceClassification], schedule: Schedule, task: ImageClassification
) -> dict[str, Schedule]:
    """The schedule of each network: low_rank_training is for low-rank layers alone.

    Raises:
        ValueError: Raised where it has no effect, or is not for one of the networks.
    """
    way, low = schedule.low_rank_training, [name for name, model in models.items() if is_low_rank(model)]
    if way is not None and not low:
        raise ValueError(f"low_rank_training {way} is for low-rank layers, and no variant has any: {', '.join(models)}")
    for name in low:
        check(models[name], way, schedule.stream(task).steps)
    return {name: schedule if name in low else replace(schedule, low_rank_training=None) for name in models}


def _learnt(
    name: str,
    model: GreenformerForSequenceClassification,
    data: Splits,
    schedule: Schedule,
    setting: dict[str, Any],
    right: dict[str, Tensor],
    country: str,
    about: dict[str, Any],
    console: Console,
) -> tuple[list[Record], Tensor]:
    """Train one network; returns its records, and which test examples it gets right, booleans (L,)."""
    set_seed(schedule.seed)
    try:
        with EnergyMeter(country) as meter:
            history = fit(model, ImageClassification(data), schedule, label=f"{name:<16}", console=console)
        if history.stopped is not None:
            raise Stopped(history.stopped)
        own = correct(*predict(model, data.test, batch_size=256))
    except ValueError as error:  # its outputs became no numbers, say
        raise ValueError(f"{name} cannot be compared: {error}, or leave it out") from error
    return _trained(name, setting, model, data, right | {name: own}, meter, history, about), own


def _trained(
    name: str,
    setting: dict[str, Any],
    model: GreenformerForSequenceClassification,
    data: Splits,
    right: dict[str, Tensor],
    meter: EnergyMeter,
    history: History,
    about: dict[str, Any],
) -> list[Record]:
    record = partial(Record.of, benchmark="compare", variant=name, context=about)
    train = correct(*predict(model, data.train, batch_size=256))
    test = right[name]
    # Where images have a validation split, training is judged by that.
    metric, split = ("test_accuracy", {}) if data.valid is None else ("accuracy", {"split": "valid"})
    interval = None
    if name != BASELINE:
        _, low, high = paired_difference(test, right[BASELINE])
        interval = [low, high]
    return [
        record("train_accuracy", 100 * train.double().mean().item(), setting=setting),
        record("test_accuracy", 100 * test.double().mean().item(), setting=setting, interval=interval),
        record("train_time", history.seconds, setting=setting),
        record("energy", meter.energy_wh, setting=setting, source=meter.source, by=meter.by),
        record("co2", meter.co2_g, setting=setting, source=meter.source, by=meter.by),
        *(
            # The curve of a training that diverged ends where its loss is no number.
            record("train_loss", loss, setting=setting | {"step": step})
            for step, loss in history.curve("loss")
            if isfinite(loss)
        ),
        *(
            record(metric, score, setting=setting | split | {"epoch": step / history.steps_an_epoch})
            for step, score in history.curve("eval_accuracy")
        ),
    ]


def _at_demo_size(
    models: dict[str, GreenformerForSequenceClassification],
    data: Splits,
    setting: dict[str, Any],
    about: dict[str, Any],
    progress: Callable[[float], None],
) -> list[Record]:
    """Costs of the trained models for one batch of real images."""
    batch = [data.train[index % len(data.train)] for index in range(setting["batch"])]
    device = models[BASELINE].device
    values, labels = (torch.stack([item[key] for item in batch]).to(device) for key in ("input_values", "labels"))

    def forward(model: GreenformerForSequenceClassification) -> Callable[[], Tensor]:
        return lambda: model(input_values=values, labels=labels).loss

    subjects = {name: Subject(model, forward(model)) for name, model in models.items()}
    return costs(subjects, benchmark="compare", setting=setting, repeats=15, about=about, progress=progress)


def _at_full_size(
    variants: Iterable[str],
    length: int,
    batch: int,
    seed: int,
    device: torch.device,
    about: dict[str, Any],
    progress: Callable[[float], None],
) -> list[Record]:
    """Costs of one layer of each variant, and of the Transformer with eager attention (in inference)."""
    setting = {"at": "layer", "length": length, "batch": batch, "hidden": FULL_SIZE["hidden_size"], "layers": 1}
    set_seed(seed)
    x = torch.randn(batch, length, FULL_SIZE["hidden_size"])

    def inputs(config: GreenformerConfig) -> Tensor:
        return x[..., : config.hidden_size].contiguous()

    def forward(layer: torch.nn.Module, x: Tensor) -> Callable[[], Tensor]:
        return lambda: run([layer], x)[0].sum()

    subjects = {}
    for name in variants:
        slot = slots(name, rank=FULL_SIZE_RANK, attention_size=FULL_SIZE_K, narrow=True)
        config = GreenformerConfig(num_hidden_layers=1, max_position_embeddings=length, **FULL_SIZE, **slot)
        config = controlled(
            name, config, lambda config: layer_of(config, 0), lambda layer, config: run([layer], inputs(config))
        )
        layer = layer_of(config, 0).to(device)
        subjects[name] = Subject(layer, forward(layer, inputs(config).to(device)))
    plain = subjects[BASELINE]

    def eager() -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return plain.forward()

    about_all: dict[str, Any] = {"benchmark": "compare", "setting": setting, "about": about, "repeats": 5}
    every = {**subjects, EAGER: Subject(plain.module, eager)}
    both = costs(every, INFERENCE, **about_all, progress=lambda share: progress(share / 2))
    return both + costs(subjects, TRAINING, **about_all, progress=lambda share: progress(0.5 + share / 2))
