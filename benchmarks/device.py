"""What waits for an accelerator: the thesis' grid, and every mechanism and change, beside the CPU's numbers and SDPA.

    python benchmarks/device.py [--quick] [--only NAME] [--part grid|table3|speed|mnist|low_rank|checks|changes]
        [--json results/device.jsonl]

In order of value; each part is run alone by `--part`. All go on where they were stopped: what the file of `--json` has
is not measured again, and trainings go on in their run folders.

Grid: time, memory and FLOPs of the Low-Rank Transformer and of Linformer at all lengths and ranks of figures 3.4 to
3.7, beside the published figures. Table 3: Linformer's inference to N 65,536 and k 2,048 with the largest batch in
16 GiB.

Speed: 8 heads of 64, 32,768 tokens in all, in bfloat16, inference and training, beside torch's fused attention
(FlashAttention) under the same causal mask, patterns also beside FlexAttention of torch alone, which is told which
pairs are seen; and the peak memory. A mechanism is left out where N x M numbers do not fit.

Mnist: table 3.1 at full size, 785 positions, by table3_1_mnist.py, each network at one learning rate. Low rank: how
low-rank layers are trained, at the large size of lowrank_training.py, with one seed.

Checks: outputs and gradients in float32 beside those of the CPU in float64, outputs in bfloat16 beside them, with a
mask; causality to the bit; the amount of padding. Where a mechanism chooses keys by a step that rounding can change,
both are given the choice of the CPU.

Changes: a small BERT of drawn weights, changed on the accelerator; it is compared with the same change on the CPU,
saved, and loaded again onto the accelerator.

Skipped where there is no CUDA device, but with `--quick`, which then takes the CPU. `--device cpu` runs all but speed
and the trainings at full size here, which takes long without `--quick`.
"""

import copy
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import lowrank_training
import table3_1_mnist
import torch
from _device_thesis import grid, table3
from _harness import DATA, REFERENCE, RUNS, Benchmark, Option, Run, growth, yes
from _ways import DENSE, Plan
from rich.table import Table
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, PreTrainedModel

import greenformers
from greenformers._torch import block_mask
from greenformers.attention import Attention, Shape, build, names
from greenformers.attention._block_sparse import BlockSparse
from greenformers.changes import Attention as Swap
from greenformers.changes import (
    Bits,
    Change,
    Heads,
    Heal,
    Int8,
    Layers,
    LowRank,
    Narrow,
    Neurons,
    Product,
    Prune,
    Shrink,
    Sparse,
    Width,
)
from greenformers.measure.latency import interleaved
from greenformers.measure.limit import OutOfMemory, attempt
from greenformers.measure.memory import peak_memory
from greenformers.measure.record import Record, with_ratios

HEADS, DIM = 8, 64
CHECKED, TEXT = 640, 300
EXACT, ROUNDED = 1e-4, 3e-2
"""Largest relative differences, of float32 and of bfloat16."""
TOKENS = 32_768
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768)
SDPA, BY_FLEX = "full", " by FlexAttention"
PARTS = ("grid", "table3", "speed", "mnist", "low_rank", "checks", "changes")
MNIST = (DENSE, "lrt", "lrt by AdamW", "narrow", "linformer")
"""Networks of table 3.1 at full size."""
LOW_RANK = ("dense", "low rank", "Muon", "narrow", "narrow, Muon")
"""Ways of lowrank_training.py at the large size."""
QUICK: dict[str, tuple[str, ...]] = {
    "mechanisms": ("full", "linformer", "performer", "sliding_window"),
    "changes": ("low rank", "int8", "healed"),
}
"""Mechanisms and changes of a quick run."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="two lengths and 3 rounds, few mechanisms and changes, small trainings; without a CUDA device on the CPU",
    options=(
        Option("--lengths", "of the timings, with commas between", default=",".join(map(str, LENGTHS))),
        Option("--only", "the mechanisms or changes whose name holds this"),
        Option("--part", "one part alone", choices=PARTS),
        Option("--device", "cuda, or cpu for all but speed and full size; by default cuda", choices=("cuda", "cpu")),
        Option("--references", "published tables", Path, REFERENCE),
        Option("--data", "folder of the data sets' folders, for the trainings", Path, DATA),
        Option("--runs", "run folders of the trainings, to go on from", Path, RUNS / "device"),
    ),
)


def main(run: Run) -> bool:
    given = run.given
    there = torch.cuda.is_available()
    device = torch.device(given.device or ("cuda" if there or not run.quick else "cpu"))
    if device.type == "cuda" and not there:
        run.skip("there is no CUDA device")
    left = set[str]()
    if device.type == "cpu":
        left = {"speed"} if run.quick else {"speed", "mnist", "low_rank"}
        if given.part in left:
            run.refuse(f"--part {given.part} is for --device cuda{'' if given.part == 'speed' else ', or for --quick'}")
    if given.only and given.part not in (None, "speed", "checks", "changes"):
        run.refuse(f"--only is for mechanisms and changes, which are no part of {given.part}")
    if given.only and not any(given.only in f"{name}, causal" for name in (*names(), *recipes())):
        run.refuse(f"--only must be a part of the name of a mechanism or of a change, got {given.only!r}")
    if not all(word.isdecimal() and 1 <= int(word) <= TOKENS for word in given.lengths.split(",")):
        run.refuse(f"--lengths must be in 1..{TOKENS}, with commas between, got {given.lengths}")
    left |= {"grid", "table3", "mnist", "low_rank"} if given.only else set()
    met = True
    for part, work in zip(PARTS, (grid, table3, speeds, mnist, low_rank, checks, changes), strict=True):
        if given.part in (None, part) and part not in left:
            met &= work(run, device)
    return met


@dataclass(frozen=True)
class Form:
    """A mechanism, causal or not."""

    name: str
    causal: bool

    def __str__(self) -> str:
        return f"{self.name}, causal" if self.causal else self.name

    def build(self, length: int) -> Attention:
        """The mechanism with drawn parameters, for sequences of so many positions."""
        torch.manual_seed(0)
        return build(self.name, Shape(HEADS, DIM, length, causal=self.causal)).eval()


def forms(run: Run) -> Iterator[Form]:
    """Every form there is; without `--only`, a quick run has a few."""
    for name in names() if run.given.only or not run.quick else QUICK["mechanisms"]:
        for causal in (False, True):
            form = Form(name, causal)
            if run.given.only and run.given.only not in str(form):
                continue
            try:
                form.build(CHECKED)
            except ValueError as error:
                if causal and "causal" in str(error):
                    continue
                raise
            yield form


def place(part: str, device: torch.device) -> dict[str, Any]:
    """The setting of the records of a part; without more it is that of an accelerator."""
    return {"part": part} | ({} if device.type == "cuda" else {"device": device.type})


def passed(run: Run, part: str, device: torch.device) -> set[str]:
    """What a part found fine by the file of `--json`; what failed is looked at again."""
    at = place(part, device)
    return {
        record.variant
        for record in run.known()
        if (record.benchmark, record.metric, record.value) == (run.benchmark.name, "failures", 0.0)
        and record.setting == at
    }


# Trainings.


def mnist(run: Run, device: torch.device) -> bool:
    """Table 3.1 at full size, each network at one rate."""
    del device  # trainings take the accelerator where there is one
    folder = run.given.data / "mnist"
    if not folder.is_dir():
        print(f"left out: {folder} is not there; name its folder with --data")
        return True
    base = replace(table3_1_mnist.SETTINGS, folder=str(folder))
    base = replace(base, **table3_1_mnist.QUICK if run.quick else table3_1_mnist.FULL)
    runs = run.given.runs / ("mnist-quick" if run.quick else "mnist")
    met = table3_1_mnist.by_records(run, base, runs, MNIST)
    if met is not None:
        print("mnist: all trainings are known")
        return met
    every = table3_1_mnist.every(16 if run.quick else table3_1_mnist.K)
    plan = Plan({name: every[name] for name in MNIST}, (1.0,), 1)
    return table3_1_mnist.measure(run, base, runs, plan, run.given.references / "thesis_table3_1_mnist.csv")


def low_rank(run: Run, device: torch.device) -> bool:
    """How low-rank layers are trained, at the large size."""
    del device  # trainings take the accelerator where there is one
    size = lowrank_training.SIZES["small" if run.quick else "large"]
    folder = run.given.data / size.data
    if not folder.is_dir():
        print(f"left out: {folder} is not there; name its folder with --data")
        return True
    return lowrank_training.study(run, size, LOW_RANK, 1, run.given.data)


# Checks.


def checks(run: Run, device: torch.device) -> bool:
    """Every form's numbers beside those of the CPU."""
    table = Table("mechanism", "float32", "gradients", "bfloat16", "causal", "padding", title="beside the CPU")
    before, met = passed(run, "checks", device), True
    for form in forms(run):
        if str(form) in before:
            table.add_row(str(form), "fine, as the file has it")
            continue
        try:
            cells, fine = checked(form, device)
        except Exception as error:
            cells, fine = [f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"], False
        met &= fine
        table.add_row(str(form), *cells, "" if fine else "!")
        run.write([run.record("failures", float(not fine), str(form), place("checks", device))])
    run.show(table)
    print(f"the same numbers as on the CPU, causal to the bit, whatever the padding: {yes(met)}")
    return met


def checked(form: Form, device: torch.device) -> tuple[list[str], bool]:
    """What differs, for people, and whether it is no more than rounding."""
    exact = form.build(CHECKED).double()
    q, k, v = drawn(CHECKED, torch.float64)
    mask = torch.arange(CHECKED) < torch.tensor([CHECKED, CHECKED - 83])[:, None]
    more: dict[str, Tensor] = {}
    if exact.chooses:
        more["choice"] = exact.choose(q, k, v, mask)
    there = copy.deepcopy(exact).float().to(device)
    expected, of_expected = with_gradients(exact, (q, k, v), mask, more)
    actual, of_actual = with_gradients(there, tuple(x.float().to(device) for x in (q, k, v)), mask.to(device), more)
    single, gradients = apart(actual, expected), max(map(apart, of_actual, of_expected))
    low = copy.deepcopy(there).to(torch.bfloat16)
    with torch.no_grad():
        half = low(*(x.bfloat16().to(device) for x in (q, k, v)), mask.to(device), **on(more, device))
    rounded = apart(half[mask_of(mask, half)], expected[mask_of(mask, expected)])
    causal = "" if not form.causal else yes(to_the_bit(there, device))
    padding = amount_of_padding(form, device)
    cells = [f"{single:.1e}", f"{gradients:.1e}", f"{rounded:.1e}", causal, f"{padding:.1e}"]
    fine = single <= EXACT and gradients <= 10 * EXACT and rounded <= ROUNDED and causal != "no" and padding <= EXACT
    return cells, fine


def drawn(length: int, dtype: torch.dtype, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(batch, HEADS, length, DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def on(more: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: x.to(device) for name, x in more.items()}


def mask_of(mask: Tensor, out: Tensor) -> Tensor:
    return mask[:, None, :].expand(out.shape[:3]).to(out.device)


def with_gradients(
    module: Attention, inputs: tuple[Tensor, ...], mask: Tensor, more: Mapping[str, Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Outputs of kept queries, and gradients of the inputs that have one."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = module(*leaves, mask, **on(more, mask.device)).masked_fill(~mask[:, None, :, None], 0.0)
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out)
    (out * weight).sum().backward()
    everything = [*leaves, *module.parameters()]
    return out.detach(), [x.grad for x in everything if x.grad is not None]


def apart(actual: Tensor, expected: Tensor) -> float:
    """||actual - expected|| / ||expected||."""
    actual = actual.detach().double().cpu()
    return float((actual - expected).norm() / expected.norm().clamp(min=1e-12))


@torch.no_grad()
def to_the_bit(module: Attention, device: torch.device) -> bool:
    """Whether the first outputs stay when later inputs change."""
    q, k, v = (x.to(device) for x in drawn(CHECKED, torch.float32))
    before = module(q, k, v)
    changed = [torch.cat([x[:, :, :TEXT], 3 * x[:, :, TEXT:].flip(2)], 2) for x in (q, k, v)]
    return torch.equal(module(*changed)[:, :, :TEXT], before[:, :, :TEXT])


@torch.no_grad()
def amount_of_padding(form: Form, device: torch.device) -> float:
    """How far the outputs of a text are from those of the same text between masked positions."""
    module = form.build(CHECKED).to(device)
    q, k, v = (x[:1, :, :TEXT].to(device) for x in drawn(CHECKED, torch.float32))
    mask = torch.ones(1, TEXT, dtype=torch.bool, device=device)
    alone = module(q, k, v, mask)
    left, right = 37, 83
    wide = [nn.functional.pad(x, (0, 0, left, right), value=2.0) for x in (q, k, v)]
    padded = module(*wide, nn.functional.pad(mask, (left, right)))[:, :, left : left + TEXT]
    return apart(padded, alone.double().cpu())


# Speed.

Side = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A way to compute attention of q, k and v."""


def speeds(run: Run, device: torch.device) -> bool:
    """Time and peak memory of every form at all lengths, beside fused attention and FlexAttention."""
    lengths = LENGTHS[1:4:2] if run.quick else tuple(map(int, run.given.lengths.split(",")))
    for causal in (False, True):
        for training in (False, True):
            records: list[Record] = []
            for length in lengths:
                records += at_length(run, causal, training, length, device)
            shown(run, records, f"{'causal, ' * causal}{title(training)}", lengths)
    return True


def title(training: bool) -> str:
    return "training" if training else "inference"


def at_length(run: Run, causal: bool, training: bool, length: int, device: torch.device) -> list[Record]:
    """Records of all sides at a length: those that the file of `--json` has, and new ones, which are written."""
    setting = {"length": length, "causal": causal, "mode": title(training), "tokens": TOKENS}
    before = [r for r in run.known() if (r.benchmark, r.setting) == (run.benchmark.name, setting)]
    ended = {r.variant for r in before if r.metric in ("latency", f"out_of_memory_{title(training)}")}
    makers = dict(sides(run, causal, length, device))
    left = [name for name in makers if name not in ended]
    if not left:
        return before
    q, k, v = (x.to(device) for x in drawn(length, torch.bfloat16, TOKENS // length))
    grad = torch.randn_like(q)
    calls: dict[str, Callable[[], object]] = {}
    records = []
    for name in dict.fromkeys([SDPA, *left]):  # which the others are compared with
        try:
            call = ready(makers[name](), (q, k, v), grad, training)
            attempt(call, device)  # kernels are compiled
            began = time.monotonic()
            peak = attempt(lambda call=call: peak_memory(call, device), device)  # type: ignore[misc]
            torch.cuda.synchronize(device)
        except OutOfMemory as error:
            records.append(run.record(f"out_of_memory_{title(training)}", error.limit / 2**20, name, setting))
            continue
        except Exception as error:
            print(f"{name}, N {length}, {title(training)}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        spent = time.monotonic() - began
        records.append(run.record(f"peak_memory_{title(training)}", peak / 2**20, name, setting))
        if spent < 1.0:
            calls[name] = call
        else:
            records.append(run.record("latency", 1e3 * spent, name, setting))
    rounds = 3 if run.quick else 11
    timings = interleaved(calls, repeats=rounds, warmup=1, device=device) if calls else {}
    records += [run.record("latency", timing, name, setting) for name, timing in timings.items()]
    new = [record for record in with_ratios(records, to=SDPA) if record.variant in left]
    run.write(new)
    return before + new


def sides(
    run: Run, causal: bool, length: int, device: torch.device
) -> Iterator[tuple[str, Callable[[], Side]]]:  # fmt: skip
    """Each mechanism, fused attention first, as a function that makes it; beside patterns FlexAttention of the same."""
    for form in (Form(SDPA, causal), *forms(run)):
        if form.causal == causal:
            yield form.name, partial(placed, form, length, device)
            pattern = form.build(CHECKED)
            if isinstance(pattern, BlockSparse) and pattern.labels() is None:
                yield f"{form.name}{BY_FLEX}", partial(by_flex, form, length, device)


def placed(form: Form, length: int, device: torch.device) -> Side:
    return form.build(length).to(device, torch.bfloat16)


def by_flex(form: Form, length: int, device: torch.device) -> Side:
    """FlexAttention as torch has it, told by a pattern which pairs are seen."""
    pattern: Any = form.build(length).to(device)
    everywhere = pattern.is_global(length, device)
    pattern.prepare(length - sum(pattern.ends(length)), device)

    def sees(_: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return pattern.sees(i, j, head, everywhere, length)

    mask = block_mask(sees, HEADS, length, length, device)
    return lambda q, k, v: compiled()(q, k, v, mask)


@cache
def compiled() -> Callable[..., Tensor]:
    """FlexAttention, compiled, with room for the forms of all masks; a function of its own, not to count among ours."""
    flex: Any = flex_attention

    def alone(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        out: Tensor = flex(q, k, v, block_mask=mask)
        return out

    kernel: Any = torch.compile(alone)
    config: Any = torch.compiler.config

    def call(*given: Any) -> Tensor:
        with config.patch(recompile_limit=256, fail_on_recompile_limit_hit=True):
            out: Tensor = kernel(*given)
            return out

    return call


def ready(side: Side, inputs: tuple[Tensor, ...], grad: Tensor, training: bool) -> Callable[[], object]:
    if isinstance(side, nn.Module):
        side.train(training)

    def forward() -> Tensor:
        with torch.inference_mode():
            return side(*inputs)

    def both() -> None:
        leaves = [x.detach().requires_grad_() for x in inputs]
        side(*leaves).backward(grad)
        if isinstance(side, nn.Module):
            side.zero_grad()

    return both if training else forward


def shown(run: Run, records: list[Record], about: str, lengths: tuple[int, ...]) -> None:
    """Milliseconds, in times of fused attention and, of a pattern, of FlexAttention, and MiB."""
    table = Table("", *(f"N {length:,}" for length in lengths), "exponent")
    table.title = f"{about}: ms (times SDPA's; times FlexAttention's), MiB"
    every = {(r.variant, r.setting["length"]): r for r in records if r.metric == "latency"}
    for name in dict.fromkeys(record.variant for record in records):
        times = {n: record for (own, n), record in every.items() if own == name}
        peaks = {r.setting["length"]: r for r in records if r.metric.startswith("peak") and r.variant == name}
        cells = []
        for n in lengths:
            cell = f"{times[n].value:.2f} ({1 / (times[n].ratio or 1):.2f}x" if n in times else "-"
            if n in times and (flex := every.get((f"{name}{BY_FLEX}", n))) is not None:
                cell += f"; {times[n].value / flex.value:.2f}x"
            cells.append(f"{cell}) {peaks[n].value:.0f}" if n in times else cell)
        table.add_row(name, *cells, f"{1 + growth({n: r.value for n, r in times.items()}) if times else 0:.2f}")
    run.show(table)


# Changes.


def recipes() -> dict[str, list[Change]]:
    """One of every change, and some that belong together."""
    return {
        "low rank": [LowRank(0.7)], "attention": [Swap("linformer", options={"k": 32})], "layers": [Layers(2)],
        "heads": [Heads(0.5)], "neurons": [Neurons(0.5)], "prune": [Prune(0.5)], "shrink": [Shrink(0.5)],
        "width": [Width(0.75)], "narrow": [Narrow(96, layers=2)], "sparse": [Sparse(0.5)], "int8": [Int8()],
        "bits": [Bits(4)], "product": [Product()], "healed": [LowRank(0.7), Heal(20, batch_size=16)],
        "student, healed": [
            Narrow(96, layers=2),
            Heal(20, batch_size=16, weights={"embeddings": 1.0, "similarities": 10.0}),
        ],
        "aware": [LowRank(0.7), Heal(20, batch_size=16, aware=True), Int8()],
    }  # fmt: skip


def changes(run: Run, device: torch.device) -> bool:
    """Each change made there, beside the CPU's, and loaded again."""
    table = Table("change", "seconds", "on the CPU", "apart", "loaded again", "", title="changes of a network there")
    before, met = passed(run, "changes", device), True
    for name, recipe in recipes().items():
        if run.given.only and run.given.only not in name:
            continue
        if run.quick and not run.given.only and name not in QUICK["changes"]:
            continue
        if name in before:
            table.add_row(name, "fine, as the file has it")
            continue
        try:
            cells, fine = outcome(recipe, device)
        except Exception as error:
            cells, fine = ["", "", f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"], False
        met &= fine
        print(f"{name}: {' '.join(cells)}", flush=True)
        table.add_row(name, *cells, "" if fine else "!")
        run.write([run.record("failures", float(not fine), name, place("changes", device))])
    run.show(table)
    print(f"every change is made there, saved and loaded: {yes(met)}")
    return met


def network(recipe: list[Change]) -> PreTrainedModel:
    """A small BERT of drawn weights; what is looked for does not depend on its size. Width is of pre-norm networks."""
    torch.manual_seed(0)
    if any(isinstance(change, Width) for change in recipe):
        return GPT2LMHeadModel(GPT2Config(n_embd=192, n_head=6, n_layer=3, vocab_size=2000)).eval()
    config = BertConfig(
        hidden_size=192, num_attention_heads=6, intermediate_size=768, num_hidden_layers=3, vocab_size=2000,
    )  # fmt: skip
    return BertModel(config).eval()


def batches(device: torch.device) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1000, 2000, (64, 32), generator=generator).to(device)
    return [{"input_ids": part, "attention_mask": torch.ones_like(part)} for part in ids.split(16)]


def outcome(recipe: list[Change], device: torch.device) -> tuple[list[str], bool]:
    """What is to be said of a recipe, and whether it is fine."""
    there, seconds = changed(recipe, device)
    here, own = changed(recipe, torch.device("cpu"))
    (first, *_) = batches(device)
    (same, *_) = batches(torch.device("cpu"))
    with torch.inference_mode():
        out = there(**first)[0]
        difference = apart(out, here(**same)[0].double())
        with tempfile.TemporaryDirectory() as folder:
            greenformers.save(there, Path(folder) / "small")
            again = greenformers.load(Path(folder) / "small").to(device).eval()
            back = apart(again(**first)[0], out.double().cpu())
    fine = bool(out.isfinite().all()) and back <= EXACT
    return [f"{seconds:.1f}", f"{own:.1f}", f"{difference:.1e}", f"{back:.1e}"], fine


def changed(recipe: list[Change], device: torch.device) -> tuple[Any, float]:
    nets: list[Any] = [network(recipe) for _ in range(2)]
    (model, teacher), inputs = (net.to(device) for net in nets), batches(device)
    rows = [
        {name: x[row].cpu() for name, x in part.items()} for part in inputs for row in range(len(part["input_ids"]))
    ]
    began = time.monotonic()
    greenformers.compress(model, recipe, calibration=inputs, examples=rows, teacher=teacher)
    return model.to(device).eval(), time.monotonic() - began


if __name__ == "__main__":
    BENCHMARK.run(main)
