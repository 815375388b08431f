"""What the units of a network cost: parameters, FLOPs, or seconds as measured on this machine."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from greenformers.measure.latency import interleaved
from greenformers.solve.choose_units import Cost
from greenformers.solve.coupled import Coupled, empty
from greenformers.solve.walk import sites
from greenformers.solve.watch import Batch, trace

MEASURED = 8
"""Numbers of units of a layer that are timed; between them time is linear, as closely as a budget needs it."""


def cost_of(model: nn.Module, layers: Sequence[Coupled], of: str, example: Batch) -> Cost:
    """The cost of a layer with a number of its units.

    Args:
        model: The network.
        layers: The layers whose units may go.
        of: "units", "parameters", "flops" or "latency".
        example: A batch, for FLOPs and latency.
    """
    if of == "units":
        return lambda _, left: float(left)
    if of == "parameters":
        return lambda layer, left: left / layer.count * _weights(model, layer)
    linear = [site for site in sites(model, "linear") if any(site.path in layer.paths for layer in layers)]
    shapes = trace(model, linear, example).shapes
    if of == "flops":
        return lambda layer, left: left / layer.count * _flops(model, layer, shapes)
    times: dict[object, dict[int, float]] = {}

    def seconds(layer: Coupled, left: int) -> float:
        key = tuple((repr(model.get_submodule(path)), tuple(shapes[path])) for path in layer.paths)
        if key not in times:
            times[key] = _timed(model, layer, shapes)
        known = times[key]
        if left in known:
            return known[left]
        below, above = max(at for at in known if at < left), min(at for at in known if at > left)
        share = (left - below) / (above - below)
        return known[below] * (1 - share) + known[above] * share

    return seconds


def _weights(model: nn.Module, layer: Coupled) -> int:
    """Weights of all units: those of the whole rows, and of the columns."""
    total = 0
    for path, units in (*layer.first.items(), (layer.second, layer.columns)):
        linear = model.get_submodule(path)
        m, n = _size(linear)
        total += units.numel() * (m if path == layer.second else n + (getattr(linear, "bias", None) is not None))
    return total


def _size(linear: nn.Module) -> tuple[int, int]:
    (site,) = sites(nn.ModuleList([linear]), "linear")
    return site.m, site.n


def _flops(model: nn.Module, layer: Coupled, shapes: Mapping[str, Sequence[torch.Size]]) -> float:
    total = 0.0
    for path, units in (*layer.first.items(), (layer.second, layer.columns)):
        m, n = _size(model.get_submodule(path))
        positions = sum(shape[:-1].numel() for shape in shapes[path])
        total += 2 * positions * units.numel() * (m if path == layer.second else n)
    if layer.kind == "heads":
        total += sum(2 * 2 * batch * N * M * layer.columns.numel() for batch, N, M in _lengths(layer, shapes))
    return total


def _lengths(layer: Coupled, shapes: Mapping[str, Sequence[torch.Size]]) -> list[tuple[int, int, int]]:
    """Texts, queries and keys of each call: keys are as many as inputs of the longest projection."""
    calls = zip(shapes[layer.second], *(shapes[path] for path in layer.first), strict=True)
    return [(out[0], out[1], max(x[1] for x in given)) for out, *given in calls]


def _timed(model: nn.Module, layer: Coupled, shapes: Mapping[str, Sequence[torch.Size]]) -> dict[int, float]:
    """Seconds of linear layers and attention with several numbers of units: medians of interleaved runs."""
    step = max(1, layer.count // MEASURED)
    tried = sorted({1, *range(step, layer.count + 1, step), layer.count})
    second = model.get_submodule(layer.second)
    weight = second.weight
    assert isinstance(weight, torch.Tensor)
    calls = {}
    for left in tried:
        modules = {
            path: empty(model.get_submodule(path), rows=left * units.shape[1]) for path, units in layer.first.items()
        }
        width = left * layer.columns.shape[1]
        modules[layer.second] = empty(second, columns=width)
        for module in modules.values():
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=0.02)  # uninitialised numbers may be subnormal, which multiply slowly
        inputs = {
            path: [torch.randn(*shape[:-1], _size(module)[1]).to(weight) for shape in shapes[path]]
            for path, module in modules.items()
        }
        attended = []
        if layer.kind == "heads":
            # Of any head dimension attention costs what its width does; 64 is the usual one.
            D = next(size for size in (64, 32, 16, 8, 4, 2, 1) if width % size == 0)
            for batch, N, M in _lengths(layer, shapes):
                q, k = (torch.randn(batch, width // D, length, D).to(weight) for length in (N, M))
                attended.append((q, k, k))

        def run(modules=modules, inputs=inputs, attended=attended) -> None:  # type: ignore[no-untyped-def]
            for path, module in modules.items():
                for x in inputs[path]:
                    module(x)
            for qkv in attended:
                F.scaled_dot_product_attention(*qkv)

        calls[str(left)] = run
    with torch.inference_mode():
        timings = interleaved(calls, repeats=7, warmup=2, min_time=0.1, device=weight.device)
    return {left: timings[str(left)].median for left in tried}
