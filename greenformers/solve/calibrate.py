"""What the maps of a network see: covariances of inputs and of output gradients, streamed over batches of data.

A map's statistics are sums of outer products, d x d whatever the amount of data. Those of as many maps as fit `memory`
are collected in one pass over the data, at least one map's; then come the next. Maps that read the same tensor, as
query, key and value do, share one covariance. Padded positions are left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greenformers._torch import padding_of
from greenformers.lowrank.factorize import Statistics
from greenformers.measure.quality import evaluating
from greenformers.solve.walk import Site, kind_of

Batch = Any
"""A mapping of keyword arguments, a sequence of positional ones, or one tensor."""

Loss = Callable[[nn.Module, Batch], Tensor]
"""The loss of a model on a batch, as a scalar tensor. If it has a method `restart`, that is called before each pass."""

Hook = Callable[[nn.Module, tuple[Any, ...], Any], Any]

UNFELT = 1e-30

MASKS = ("attention_mask", "decoder_attention_mask")


def call(model: nn.Module, batch: Batch) -> Any:
    """The model's output on a batch."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, Tensor):
        return model(batch)
    if isinstance(batch, str) or not isinstance(batch, Sequence):
        raise ValueError(f"a batch must be a mapping, a sequence or a tensor, got a {type(batch).__name__}")
    return model(*batch)


@dataclass(frozen=True)
class Trace:
    """What one batch showed.

    Attributes:
        groups: sites that read the same input, in the order of execution.
        shapes: of the inputs of each site, one a call, by path.
        positions: how many inputs each site mapped, by path.
    """

    groups: list[list[Site]]
    shapes: dict[str, list[torch.Size]]
    positions: dict[str, int]


def trace(model: nn.Module, sites: Sequence[Site], batch: Batch) -> Trace:
    """Run one batch and see in which order the sites are called, and which read the same tensor.

    Raises:
        ValueError: a site is not reached.
    """
    inputs: dict[str, list[Tensor]] = {}  # the tensors themselves: an id is only unique while its object lives
    positions: dict[str, int] = {}

    def note(site: Site) -> Hook:
        def hook(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
            inputs.setdefault(site.path, []).append(args[0])
            positions[site.path] = positions.get(site.path, 0) + out.numel() // _outputs(site)

        return hook

    with evaluating(model), torch.no_grad(), hooked(model, [(site, note(site)) for site in sites]):
        call(model, batch)
    missing = [site.path for site in sites if site.path not in inputs]
    if missing:
        raise ValueError(f"the data does not reach {missing[0]!r}, one of {len(missing)} such maps")
    groups: dict[tuple[int, ...], list[Site]] = {}
    by_path = {site.path: site for site in sites}
    for path, seen in inputs.items():
        site = by_path[path]
        # Convolutions see patches, embeddings counts: never shared.
        key = tuple(map(id, seen)) if site.kind == "linear" else (id(site),)
        groups.setdefault(key, []).append(site)
    shapes = {path: [x.shape for x in seen] for path, seen in inputs.items()}
    return Trace(list(groups.values()), shapes, positions)


def _outputs(site: Site) -> int:
    return site.n if site.kind == "embedding" else site.groups * site.m


def covariances(
    model: nn.Module,
    found: Trace,
    batches: Iterable[Batch],
    *,
    loss: Loss | None = None,
    memory: float = 2**30,
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[tuple[Site, list[Statistics]]]:
    """The statistics of every site, one a group of its matrices, in the order of execution.

    `inputs` is the sum of x x^T over inputs; of an embedding the counts of its entries, (V,). `gradients` is the sum of
    d d^T over gradients of `loss` in the outputs, if one is given. In float64, on the model's device.

    Of a map with a bias x is taken from its mean, which is `mean`: what a constant input gives, the bias can give too.

    Args:
        model: run in evaluation mode, without weight gradients.
        found: of `trace`.
        batches: gone through once for every portion that fits `memory`.
        loss: for G.
        memory: bytes of statistics held at once; one group of maps that read the same tensor is held in any case.
        progress: called with the share that is done.

    Raises:
        ValueError: no batch; inputs that are not finite.
    """
    portions = _portions(found.groups, memory, loss is not None)
    for index, portion in enumerate(portions):
        sums = _collect(model, portion, batches, loss, lambda share, at=index: progress((at + share) / len(portions)))  # type: ignore[misc]
        for group in portion:
            for site in group:
                yield site, _statistics(site, group[0], sums)


def _statistics(site: Site, first: Site, sums: Mapping[tuple[str, str], Tensor]) -> list[Statistics]:
    C, G = sums[first.path, "C"], sums.get((site.path, "G"))
    if not C.isfinite().all():
        raise ValueError(f"the inputs of {site.path!r} are not finite on the calibration data")
    if site.kind == "embedding":
        return [Statistics(C)]
    if G is not None and not G.isfinite().all():
        raise ValueError(f"the gradients in {site.path!r} are not finite on the calibration data")
    mean = sums[first.path, "x"] / sums[first.path, "count"]
    if has_bias(site):
        C = C - sums[first.path, "count"] * mean[:, :, None] * mean[:, None, :]
    return [
        Statistics(C[g], gradients=None if G is None else G[g], mean=mean[g] if has_bias(site) else None)
        for g in range(site.groups)
    ]


def has_bias(site: Site) -> bool:
    """True where a constant can be added to what the site gives."""
    return getattr(site.module, "bias", None) is not None


def _portions(groups: list[list[Site]], memory: float, gradients: bool) -> list[list[list[Site]]]:
    portions: list[list[list[Site]]] = []
    held = float("inf")
    for group in groups:
        size = 8 * group[0].groups * group[0].n ** 2 if group[0].kind != "embedding" else 0
        if gradients:
            size += 8 * sum(site.groups * site.m**2 for site in group if site.kind != "embedding")
        if held + size > memory:
            portions.append([])
            held = 0
        portions[-1].append(group)
        held += size
    return portions


def _collect(
    model: nn.Module,
    portion: list[list[Site]],
    batches: Iterable[Batch],
    loss: Loss | None,
    progress: Callable[[float], None],
) -> dict[tuple[str, str], Tensor]:
    sums: dict[tuple[str, str], Tensor] = {}

    def add(key: tuple[str, str], more: Tensor) -> None:
        more = more.double()  # float32 products, float64 sums
        sums[key] = more if key not in sums else sums[key].add_(more)

    def note(site: Site, first: bool) -> Hook:
        def hook(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
            given = masks.at(args[0])
            if first:
                with torch.no_grad():
                    if site.kind == "embedding":
                        counts = torch.bincount(kept(args[0], args[0].shape, given), minlength=site.m)
                        add((site.path, "C"), counts)
                    else:
                        x = rows(site, args[0], given)
                        add((site.path, "C"), x.mT @ x)
                        add((site.path, "x"), x.sum(1))
                        add((site.path, "count"), x.new_tensor(x.shape[1]))
            if loss is None:
                return None
            # The graph begins at the first site: nothing before it needs a gradient. A clone, for what follows may
            # change its input in place, and must not a leaf.
            out = out if out.requires_grad else out.detach().requires_grad_().clone()
            if site.kind != "embedding":
                out.register_hook(lambda d: add((site.path, "G"), _gram(out_rows(site, d, given))))
            return out

        return hook

    hooks = [(site, note(site, site is group[0])) for group in portion for site in group]
    batches = list(batches) if not isinstance(batches, Sequence) else batches
    if not len(batches):
        raise ValueError("the calibration data must hold at least one batch, got none")
    getattr(loss, "restart", lambda: None)()
    with (
        evaluating(model),
        _frozen(model),
        torch.set_grad_enabled(loss is not None),
        padding(model) as masks,
        hooked(model, hooks),
    ):
        for index, batch in enumerate(batches):
            masks.begin(batch)
            if loss is None:
                call(model, batch)
            else:
                value = loss(model, batch)
                if not value.isfinite():
                    raise ValueError(f"the loss on batch {index} of the calibration data is {value.item()}")
                if value.requires_grad:  # it does not if no map of the portion has a part in it
                    value.backward()
            progress((index + 1) / len(batches))
    for site in (site for group in portion for site in group):
        if loss is not None and site.kind != "embedding" and (site.path, "G") not in sums:
            # The loss does not depend on this map: any error in it costs next to nothing.
            eye = torch.eye(site.m, dtype=torch.float64, device=site.matrices().device)
            sums[site.path, "G"] = (UNFELT * eye).expand(site.groups, -1, -1)
    return sums


def _gram(rows: Tensor) -> Tensor:
    return rows.mT @ rows


class Padding:
    """Which positions of a batch are padding: masks (B, N), by name.

    An encoder-decoder has two, perhaps of one shape. That of the encoder is for what the encoder maps, and for what the
    decoder maps of the encoder's output.
    """

    def __init__(self, encoder: nn.Module | None) -> None:
        self.encoder = encoder
        self.begin({})

    def begin(self, batch: Batch) -> None:
        """Take the masks of the batch that is next."""
        found = {name: batch.get(name) for name in MASKS} if isinstance(batch, Mapping) else {}
        given = {name: mask.bool() for name, mask in found.items() if isinstance(mask, Tensor) and mask.dim() == 2}
        self.masks = {name: mask for name, mask in given.items() if not mask.all()}
        self.encoded: Tensor | None = None

    def note(self, _: nn.Module, __: object, out: Any) -> None:
        """Hook on the encoder."""
        self.encoded = out if isinstance(out, Tensor) else out[0]

    def at(self, x: Tensor) -> dict[str, Tensor]:
        """The masks that may be of an input."""
        if self.encoder is None:
            return self.masks
        name = MASKS[self.encoded is not None and x is not self.encoded]
        return {name: self.masks[name]} if name in self.masks else {}


@contextmanager
def padding(model: nn.Module) -> Iterator[Padding]:
    """What tells padding in the batches that are called in a `with` block."""
    both = getattr(getattr(model, "config", None), "is_encoder_decoder", False) and hasattr(model, "get_encoder")
    encoder = model.get_encoder() if both else None  # type: ignore[operator]
    found = Padding(None if encoder is model else encoder)
    hook = None if found.encoder is None else found.encoder.register_forward_hook(found.note)
    try:
        yield found
    finally:
        if hook is not None:
            hook.remove()


def kept(x: Tensor, shape: Sequence[int], given: Mapping[str, Tensor]) -> Tensor:
    """Rows of x (B, N, ...) at positions that are no padding; all of them where no mask has this shape."""
    for mask in given.values():
        if tuple(shape[:2]) == tuple(mask.shape) and len(shape) >= 2:
            return x[mask]
    return x.flatten(0, len(shape) - 1) if x.dim() == len(shape) else x.flatten(0, -2)


def rows(site: Site, x: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """Inputs as the matrices of a site see them: (g, positions, n), float32 or wider."""
    x = x.detach()
    x = x if x.dtype == torch.float64 else x.float()
    if site.kind == "linear":
        return kept(x, x.shape[:-1], given)[None]
    # Patches, by a convolution with the unit matrix for kernel: any stride, padding and dilation.
    convolution: Any = site.module
    eye = torch.eye(site.n, dtype=x.dtype, device=x.device).view(site.n, *convolution.weight.shape[1:])
    eye = eye.repeat(site.groups, *[1] * (eye.dim() - 1))
    padding = convolution.padding
    if convolution.padding_mode != "zeros":
        x = F.pad(x, padding_of(convolution), mode=convolution.padding_mode)
        padding = 0
    apply = (F.conv1d, F.conv2d, F.conv3d)[eye.dim() - 3]
    patches = apply(x, eye, None, convolution.stride, padding, convolution.dilation, site.groups)
    if patches.dim() < eye.dim():  # without a batch
        patches = patches[None]
    return patches.flatten(2).unflatten(1, (site.groups, site.n)).permute(1, 0, 3, 2).flatten(1, 2)


def out_rows(site: Site, d: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """Gradients in the outputs of a site: (g, positions, m)."""
    d = d if d.dtype == torch.float64 else d.float()
    if site.kind == "linear":
        return kept(d, d.shape[:-1], given)[None]
    d = d if d.dim() == len(site.module.weight.shape) else d[None]  # type: ignore[arg-type]
    return d.flatten(2).unflatten(1, (site.groups, site.m)).permute(1, 0, 3, 2).flatten(1, 2)


@contextmanager
def hooked(model: nn.Module, hooks: Iterable[tuple[Site, Hook]]) -> Iterator[None]:
    """Forward hooks on sites in a `with` block: on each module that shares the weight, once where it stands twice."""
    with ExitStack() as stack:
        for site, hook in hooks:
            for module in {id(found): found for found in map(model.get_submodule, site.paths)}.values():
                # Of an embedding and the map tied to it, what the embedding sees.
                if (kind_of(module) or "linear") == site.kind:
                    stack.callback(module.register_forward_hook(_positional(hook), with_kwargs=True).remove)
        yield


def _positional(hook: Hook) -> Callable[..., Any]:
    """A hook that finds the input among the arguments, however it was passed."""
    return lambda module, args, kwargs, out: hook(module, args or tuple(kwargs.values()), out)


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
