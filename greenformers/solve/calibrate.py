"""What the maps of a network see: covariances of inputs and of output gradients, streamed over batches of data.

A map's statistics are sums of outer products, d x d whatever the amount of data. Those of as many maps as fit `memory`
are collected in one pass over the data, at least one map's; then come the next. Maps that read the same tensor, as
query, key and value do, share one covariance. Padded positions are left out.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greenformers._torch import padding_of
from greenformers.lowrank.factorize import Statistics, gram
from greenformers.measure.quality import evaluating
from greenformers.solve.walk import Site, kind_of

Batch = Any
"""A mapping of keyword arguments, a sequence of positional ones, or one tensor."""

Loss = Callable[[nn.Module, Batch], Tensor]
"""The loss of a model on a batch, as a scalar tensor. If it has a method `restart`, that is called before each pass."""

Hook = Callable[[nn.Module, tuple[Any, ...], Any], Any]

UNFELT = 1e-30

WIDE = (torch.float32, torch.float64)

CHUNK = 1024
"""Positions a product: of fewer, adding up d x d sums takes longer than the products themselves."""

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
    spectra: bool = False,
    dense: "DenseRows | None" = None,
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
        spectra: give no more than spectra need: `outputs` in place of `inputs` of maps that give less than they read.
        dense: is filled with what groups see, for sequential solvers.
        progress: called with the share that is done.

    Raises:
        ValueError: no batch; inputs that are not finite.
    """
    portions = _portions(found.groups, memory, loss is not None, spectra)
    calls = {path: len(shapes) for path, shapes in found.shapes.items()}
    for index, portion in enumerate(portions):
        notes = _Notes(loss is not None, spectra, dense, calls)
        sums = _collect(
            model,
            portion,
            batches,
            loss,
            notes,
            lambda share, at=index: progress((at + share) / len(portions)),  # type: ignore[misc]
        )
        for group in portion:
            for site in group:
                yield site, _statistics(site, group[0], sums)


def _statistics(site: Site, first: Site, sums: Mapping[Hashable, Tensor]) -> list[Statistics]:
    outputs = (site.path, "Y") in sums
    C, G = sums[(site.path, "Y") if outputs else (first.path, "C")], sums.get((site.path, "G"))
    if not C.isfinite().all():
        raise ValueError(f"the inputs of {site.path!r} are not finite on the calibration data")
    if site.kind == "embedding":
        return [Statistics(C)]
    if G is not None and not G.isfinite().all():
        raise ValueError(f"the gradients in {site.path!r} are not finite on the calibration data")
    count = sums[first.path, "count"]
    mean = sums[(site.path, "y") if outputs else (first.path, "x")] / count
    if has_bias(site):
        C = C - count * mean[:, :, None] * mean[:, None, :]
    if outputs:
        return [Statistics(outputs=C[0], gradients=None if G is None else G[0])]
    return [
        Statistics(C[g], gradients=None if G is None else G[g], mean=mean[g] if has_bias(site) else None)
        for g in range(site.groups)
    ]


def has_bias(site: Site) -> bool:
    """True where a constant can be added to what the site gives."""
    return getattr(site.module, "bias", None) is not None


def gives_less(group: Sequence[Site]) -> bool:
    """True for linear maps that together give fewer numbers than they read: then what they give says all, and faster.

    Of half precision it does not: outputs are rounded, products of inputs and weights are not.
    """
    first = group[0]
    return first.kind == "linear" and sum(site.m for site in group) < first.n and first.matrices().dtype in WIDE


Key = tuple[str, bool]
"""Path of a map, and whether what it gives is meant: else what it reads."""


def keys_of(group: Sequence[Site]) -> dict[Key, Site]:
    """What is to be known of a group in the dense network: what its maps read, or give where that is less."""
    return {(site.path, True): site for site in group} if gives_less(group) else {(group[0].path, False): group[0]}


class DenseRows:
    """What groups of maps see in the dense network, batch by batch; of the first groups, as many as fit.

    Args:
        memory: bytes.
    """

    def __init__(self, memory: float) -> None:
        self.memory, self._held = memory, 0
        self._rows: dict[Key, list[list[Tensor]]] = {}

    def begin(self, keys: Iterable[Key]) -> None:
        """Get ready for rows of these, which come after those held already."""
        self._rows |= {key: [] for key in keys}

    def holds(self, keys: Iterable[Key]) -> bool:
        """True where nothing was dropped."""
        return all(key in self._rows for key in keys)

    def add(self, key: Key, number: int, part: Tensor, calls: int) -> None:
        """Hold rows (g, positions, n) of the batch with this number, of no more than so many calls of a map."""
        batches = self._rows.get(key)
        if batches is None:
            return
        batches += [[] for _ in range(number + 1 - len(batches))]
        if len(batches[number]) == calls:
            return
        batches[number].append(part.clone())
        self._held += _size(part)
        while self._held > self.memory:
            self.take(next(reversed(self._rows)))

    def take(self, key: Key) -> list[list[Tensor]]:
        """The rows of each batch, of each call. They are held no longer."""
        batches = self._rows.pop(key)
        self._held -= sum(_size(part) for batch in batches for part in batch)
        return batches

    def clear(self) -> None:
        """Hold nothing."""
        self._rows.clear()
        self._held = 0


def _size(part: Tensor) -> int:
    return part.numel() * part.element_size()


def given_rows(site: Site, module: nn.Module, out: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """What a linear map gives without its bias: (1, positions, m)."""
    bias: Any = getattr(module, "bias", None)
    out = out.detach()
    return out_rows(site, out if bias is None else out - bias, given)


@dataclass(frozen=True)
class _Notes:
    """What is noted in a pass.

    Attributes:
        gradients: sums of gradients.
        spectra: of maps that give less than they read, sums of what they give in place of what they read.
        dense: is filled, where there is one.
        calls: of each map in a batch, by path.
    """

    gradients: bool
    spectra: bool
    dense: DenseRows | None
    calls: Mapping[str, int]

    def fill(self, key: Key, number: int, part: Tensor) -> None:
        """Hand rows on to sequential solvers."""
        if self.dense is not None:
            self.dense.add(key, number, part, self.calls[key[0]])


def _portions(groups: list[list[Site]], memory: float, gradients: bool, spectra: bool) -> list[list[list[Site]]]:
    portions: list[list[list[Site]]] = []
    held = float("inf")
    for group in groups:
        size = _bytes(group[0].groups, group[0].n) if group[0].kind != "embedding" else 0
        if spectra and gives_less(group):
            size = sum(_bytes(1, site.m) for site in group)
        if gradients:
            size += sum(_bytes(site.groups, site.m) for site in group if site.kind != "embedding")
        if held + size > memory:
            portions.append([])
            held = 0
        portions[-1].append(group)
        held += size
    return portions


def _bytes(groups: int, width: int) -> int:
    """Of a sum in float64, and of the positions in float32 that are gathered for it."""
    return groups * (8 * width**2 + 4 * CHUNK * width)


class Sums:
    """Running sums over batches, by key: products of float32 over `CHUNK` positions at a time, added up in float64."""

    def __init__(self) -> None:
        self._sums: dict[Hashable, Tensor] = {}
        self._gathered: dict[Hashable, tuple[list[Tensor], int]] = {}

    def add(self, key: Hashable, more: Tensor) -> None:
        """Add to a sum."""
        self._sums[key] = self._sums[key].add_(more) if key in self._sums else more.double()

    def products(self, key: Hashable, *rows: Tensor) -> None:
        """Add the sum over positions of a b^T, or of a a^T. Rows are (g, positions, n), and copied if they are held."""
        positions, at = rows[0].shape[1], 0
        while at < positions:
            buffers, held = self._gathered.get(key, ([], 0))
            if not held and positions - at >= CHUNK:
                self.add(key, _product([part[:, at:] for part in rows]))
                return
            buffers = buffers or [part.new_empty(len(part), CHUNK, part.shape[2]) for part in rows]
            count = min(CHUNK - held, positions - at)
            for buffer, part in zip(buffers, rows, strict=True):
                buffer[:, held : held + count] = part[:, at : at + count]
            self._gathered[key] = buffers, held + count
            at += count
            if held + count == CHUNK:
                self._multiply(key)

    def _multiply(self, key: Hashable) -> None:
        buffers, held = self._gathered[key]
        if held:
            self.add(key, _product([buffer[:, :held] for buffer in buffers]))
        self._gathered[key] = buffers, 0

    def done(self) -> dict[Hashable, Tensor]:
        """All sums."""
        for key in self._gathered:
            self._multiply(key)
        self._gathered.clear()
        return self._sums


def _product(rows: Sequence[Tensor]) -> Tensor:
    return gram(rows[0]) if len(rows) == 1 else rows[0].mT @ rows[1]


def _collect(
    model: nn.Module,
    portion: list[list[Site]],
    batches: Iterable[Batch],
    loss: Loss | None,
    notes: _Notes,
    progress: Callable[[float], None],
) -> dict[Hashable, Tensor]:
    running, number = Sums(), 0

    def read(site: Site, x: Tensor, given: Mapping[str, Tensor], less: bool) -> None:
        if site.kind == "embedding":
            running.add((site.path, "C"), torch.bincount(kept(x, x.shape, given), minlength=site.m))
            return
        x = rows(site, x, given)
        running.add((site.path, "count"), x.new_tensor(x.shape[1]))
        if not (less and notes.spectra):
            running.products((site.path, "C"), x)
            running.add((site.path, "x"), x.sum(1))
        if not less:
            notes.fill((site.path, False), number, x)

    def gave(site: Site, y: Tensor) -> None:
        notes.fill((site.path, True), number, y)
        if notes.spectra:
            running.products((site.path, "Y"), y)
            running.add((site.path, "y"), y.sum(1))

    def note(site: Site, first: bool, less: bool) -> Hook:
        def hook(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
            given = masks.at(args[0])
            with torch.no_grad():
                if first:
                    read(site, args[0], given, less)
                if less and (notes.spectra or notes.dense is not None):
                    gave(site, given_rows(site, module, out, given))
            if loss is None:
                return None
            # The graph begins at the first site: nothing before it needs a gradient. A clone, for what follows may
            # change its input in place, and must not a leaf.
            out = out if out.requires_grad else out.detach().requires_grad_().clone()
            if site.kind != "embedding":
                out.register_hook(lambda d: running.products((site.path, "G"), out_rows(site, d, given)))
            return out

        return hook

    hooks = [(site, note(site, site is group[0], gives_less(group))) for group in portion for site in group]
    if notes.dense is not None:
        notes.dense.begin(key for group in portion if group[0].kind != "embedding" for key in keys_of(group))
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
        for number, batch in enumerate(batches):
            masks.begin(batch)
            if loss is None:
                call(model, batch)
            else:
                value = loss(model, batch)
                if not value.isfinite():
                    raise ValueError(f"the loss on batch {number} of the calibration data is {value.item()}")
                if value.requires_grad:  # it does not if no map of the portion has a part in it
                    value.backward()
            progress((number + 1) / len(batches))
    sums = running.done()
    for site in (site for group in portion for site in group):
        if loss is not None and site.kind != "embedding" and (site.path, "G") not in sums:
            # The loss does not depend on this map: any error in it costs next to nothing.
            eye = torch.eye(site.m, dtype=torch.float64, device=site.matrices().device)
            sums[site.path, "G"] = (UNFELT * eye).expand(site.groups, -1, -1)
    return sums


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
def hooked(model: nn.Module, hooks: Iterable[tuple[Site, Hook]], *, before: bool = False) -> Iterator[None]:
    """Forward hooks on sites in a `with` block: on each module that shares the weight, once where it stands twice.

    Args:
        model: which holds the sites.
        hooks: of each site.
        before: call them before the module runs, with None for what it gives.
    """
    with ExitStack() as stack:
        for site, hook in hooks:
            for module in {id(found): found for found in map(model.get_submodule, site.paths)}.values():
                # Of an embedding and the map tied to it, what the embedding sees.
                if (kind_of(module) or "linear") == site.kind:
                    if before:
                        handle = module.register_forward_pre_hook(_positional(hook), with_kwargs=True)
                    else:
                        handle = module.register_forward_hook(_positional(hook), with_kwargs=True)
                    stack.callback(handle.remove)
        yield


def _positional(hook: Hook) -> Callable[..., Any]:
    """A hook that finds the input among the arguments, however it was passed."""
    return lambda module, args, kwargs, out=None: hook(module, args or tuple(kwargs.values()), out)


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
