"""Watching a network run: the order in which its weights are used, and the rows that each reads, without padding."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greenformers._torch import leaves, padding_of
from greenformers.measure.quality import evaluating
from greenformers.model.loss import up_to_last_label
from greenformers.solve.walk import Site, kind_of

Batch = Any
"""A mapping of keyword arguments, a sequence of positional ones, or one tensor."""

Loss = Callable[[nn.Module, Batch], Tensor]
"""The loss of a model on a batch, a scalar. A method `restart` that it may have is called before each pass."""

Hook = Callable[[nn.Module, tuple[Any, ...], Any], Any]

MASKS = ("attention_mask", "decoder_attention_mask")
POSITIONS_FIRST = "attention_mask, positions first"


def call(model: nn.Module, batch: Batch) -> Any:
    """The model's output on a batch."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, Tensor):
        return model(batch)
    if isinstance(batch, str) or not isinstance(batch, Sequence):
        raise ValueError(f"a batch must be a mapping, a sequence or a tensor, got a {type(batch).__name__}")
    return model(*batch)


def by_name(model: nn.Module, batch: Batch) -> Batch:
    """The arguments of a batch by their names, among which masks and labels are found.

    A batch of a network that gives its arguments no names stays as it is.
    """
    if isinstance(batch, Mapping | str) or not isinstance(batch, Tensor | Sequence):
        return batch
    values = [batch] if isinstance(batch, Tensor) else batch
    taken = signature(model.forward).parameters.values()
    names = [parameter.name for parameter in taken if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD]
    return batch if len(values) > len(names) else dict(zip(names, values, strict=False))


@dataclass(frozen=True)
class Trace:
    """What runs on one batch, or on as many as it took to reach all sites, showed.

    Attributes:
        groups: Groups of sites that read the same input, in the order of execution.
        shapes: Shapes of the inputs of each site, one for each call, by path.
        positions: Number of inputs that each site read, by path; for experts, scaled so that it gives their work.
        unreached: Sites that no batch reaches.
    """

    groups: list[list[Site]]
    shapes: dict[str, list[torch.Size]]
    positions: dict[str, float]
    unreached: list[Site]

    @property
    def first_readers(self) -> dict[str, str]:
        """The path of the first site that reads the input of each, by path: the output of an encoder, say, has many."""
        return {site.path: group[0].path for group in self.groups for site in group}


def trace(model: nn.Module, sites: Sequence[Site], batch: Batch, more: Sequence[Batch] = ()) -> Trace:
    """Run one batch and record the order in which the sites are called, and which read the same tensor.

    Args:
        model: The network.
        sites: The sites.
        batch: The batch.
        more: Further batches, of which as many are run as it takes to reach sites that the batch does not reach.

    Raises:
        ValueError: No site is reached.
    """
    inputs: dict[str, list[Tensor]] = {}  # the tensors themselves: an id is only unique while its object lives
    positions: dict[str, float] = {}
    order: list[str] = []
    for each in chain((batch,), more):  # which are read as they are asked for
        new = {site.path for site in sites if site.path not in inputs}
        # Positions are those of the first batch.
        share = 1.0 if each is batch else tensors_of(batch)[0].numel() / tensors_of(each)[0].numel()
        called: list[str] = []

        def note(site: Site, new: set[str] = new, called: list[str] = called, share: float = share) -> Hook:
            def hook(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
                called.append(site.path)
                if site.path in new:
                    inputs.setdefault(site.path, []).append(args[0])
                    positions[site.path] = positions.get(site.path, 0) + share * out.numel() / _outputs(site)

            return hook

        with evaluating(model), torch.no_grad(), hooked(model, [(site, note(site)) for site in sites]):
            call(model, each)
        order = _merged(order, list(dict.fromkeys(called)))
        if all(site.path in inputs for site in sites):
            break
    unreached = [site for site in sites if site.path not in inputs]
    if not inputs:
        raise ValueError(
            f"the data does not reach {unreached[0].path!r}, nor any other of {len(unreached)} such layers"
        )
    groups: dict[tuple[int, ...], list[Site]] = {}
    by_path = {site.path: site for site in sites}
    for path in order:
        site, seen = by_path[path], inputs[path]
        # Convolutions see patches, embeddings counts, experts what is routed to them: never shared.
        key = tuple(map(id, seen)) if site.kind == "linear" else (id(site),)
        groups.setdefault(key, []).append(site)
    shapes = {path: [x.shape for x in inputs[path]] for path in order}
    return Trace(list(groups.values()), shapes, positions, unreached)


def _merged(order: list[str], called: list[str]) -> list[str]:
    """An order with what was called for the first time, each behind what was called before it."""
    merged = list(order)
    for at, path in enumerate(called):
        if path not in merged:
            before = called[at - 1] if at else None
            merged.insert(0 if before is None else merged.index(before) + 1, path)
    return merged


def _outputs(site: Site) -> int:
    return site.n if site.kind == "embedding" else site.groups * site.m


def tensors_of(batch: Batch) -> list[Tensor]:
    """The tensors of a batch, also where it is of a class of its own, as a tokenizer gives it."""
    whole = dict(batch) if isinstance(batch, Mapping) else batch
    return [leaf for leaf in leaves(whole) if isinstance(leaf, Tensor)]


def examples_in(batch: Batch) -> int:
    """Number of examples in a batch."""
    return len(tensors_of(batch)[0])


def telling(batches: Sequence[Batch]) -> Batch:
    """The first batch with texts of more than two tokens, which shows how a network is made; else the first of all."""
    long = (batch for batch in batches if any(x.dim() > 1 and x.shape[1] > 2 for x in tensors_of(batch)))
    return next(long, batches[0])


class Padding:
    """Which positions of a batch are padding: masks (B, N), by name.

    An encoder-decoder has two masks, perhaps of one shape. That of the encoder is for layers of the encoder, and for
    layers of the decoder that read the encoder output.

    Args:
        encoder: The encoder of an encoder-decoder.
        window: Number of which the network itself makes the length of its texts a multiple, by padding. Its layers read
            texts of that length, and some of them the positions first (N, B).
        turned: Whether all layers read the positions first.
        named: Function that gives the arguments of a batch by name.
    """

    def __init__(
        self, encoder: nn.Module | None, *, window: int = 1, turned: bool = False,
        named: Callable[[Batch], Batch] = lambda batch: batch,
    ) -> None:  # fmt: skip
        self.encoder, self._window, self._turned, self._named = encoder, window, turned, named
        self.begin({})

    def begin(self, batch: Batch) -> None:
        """Take the masks of the next batch."""
        batch = self._named(batch)
        masks = {name: batch.get(name) for name in MASKS} if isinstance(batch, Mapping) else {}
        tokens = batch.get("input_ids") if isinstance(batch, Mapping) else None
        given: dict[str, Tensor] = {}
        for name, mask in masks.items():
            if isinstance(mask, Tensor) and mask.dim() == 3 and isinstance(tokens, Tensor):
                mask = mask.flatten(0, 1) if mask.shape == tokens.shape else mask  # of choices, each a text
            if isinstance(mask, Tensor) and mask.dim() == 2:
                given[name] = mask.bool()
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        ids = batch.get("decoder_input_ids") if isinstance(batch, Mapping) else None
        if not isinstance(labels, Tensor) or labels.dim() != 2 or (ids is not None and ids.shape != labels.shape):
            labels = None
        if self.encoder is not None and MASKS[1] not in given and labels is not None:
            given[MASKS[1]] = up_to_last_label(labels)  # models make the inputs of the decoder from them
        if self.encoder is not None and MASKS[0] in given and MASKS[1] not in given and ids is None:
            mask = given[MASKS[0]]  # classifiers read the same text in the decoder, a place later
            given[MASKS[1]] = torch.cat([mask.new_ones(len(mask), 1), mask[:, :-1]], 1)
        if self._window > 1 and isinstance(tokens, Tensor) and tokens.dim() == 2:
            mask = given.get(MASKS[0], torch.ones_like(tokens, dtype=torch.bool))
            given[MASKS[0]] = mask = F.pad(mask, (0, -mask.shape[1] % self._window))
            given[POSITIONS_FIRST] = mask.T
        if self._turned:
            given = {name: mask.T for name, mask in given.items()}
        self.masks = {name: mask for name, mask in given.items() if not mask.all()}
        self.encoded: Tensor | None = None

    def note(self, _: nn.Module, __: object, out: Any) -> None:
        """Forward hook of the encoder, which records its output."""
        self.encoded = out if isinstance(out, Tensor) else out[0]

    def at(self, x: Tensor) -> dict[str, Tensor]:
        """The masks that may belong to an input."""
        if self.encoder is None:
            return self.masks
        name = MASKS[self.encoded is not None and x is not self.encoded]
        names = (name, POSITIONS_FIRST) if name == MASKS[0] else (name,)
        return {name: self.masks[name] for name in names if name in self.masks}


@contextmanager
def padding(model: nn.Module) -> Iterator[Padding]:
    """A `with` block whose `Padding` tells which positions of its batches are padding."""
    both = getattr(getattr(model, "config", None), "is_encoder_decoder", False) and hasattr(model, "get_encoder")
    encoder = model.get_encoder() if both else None  # type: ignore[operator]
    config = getattr(model, "config", None)
    windows = getattr(config, "attention_window", 1)  # of Longformer and LED, one or of each layer
    window = max(windows) if isinstance(windows, list | tuple) else windows
    turned = getattr(config, "model_type", None) == "xlnet"
    masks = Padding(None if encoder is model else encoder, window=window, turned=turned, named=partial(by_name, model))
    hook = None if masks.encoder is None else masks.encoder.register_forward_hook(masks.note)
    try:
        yield masks
    finally:
        if hook is not None:
            hook.remove()


def unpadded(x: Tensor, shape: Sequence[int], given: Mapping[str, Tensor]) -> Tensor:
    """Rows of x (B, N, ...) or (B N, ...) at positions that are no padding; all where no mask is of as many."""
    for mask in given.values():
        if tuple(shape[:2]) == tuple(mask.shape) and len(shape) >= 2:
            return x[mask]
        if tuple(shape) == (mask.numel(),):  # as OPT has them before its feed-forward layers
            return x[mask.flatten()]
    return x.flatten(0, len(shape) - 1) if x.dim() == len(shape) else x.flatten(0, -2)


def rows(site: Site, x: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """Inputs as the matrices of a site multiply them: (g, positions, n), float32 or wider."""
    x = x.detach()
    x = x if x.dtype == torch.float64 else x.float()
    if site.kind == "linear":
        return unpadded(x, x.shape[:-1], given)[None]
    # Patches by a convolution whose kernel is the unit matrix: of any stride, padding and dilation.
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
    return _by_group(patches, (site.groups, site.n), given)


def out_rows(site: Site, d: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """Outputs of a site, or gradients in them, as rows: (g, positions, m)."""
    d = d if d.dtype == torch.float64 else d.float()
    if site.kind == "linear":
        return unpadded(d, d.shape[:-1], given)[None]
    d = d if d.dim() == len(site.module.weight.shape) else d[None]  # type: ignore[arg-type]
    return _by_group(d, (site.groups, site.m), given)


def _by_group(x: Tensor, sizes: tuple[int, int], given: Mapping[str, Tensor]) -> Tensor:
    """What a convolution reads or gives (B, g n, ...) as rows (g, positions, n), without those that are padding."""
    mask = next((mask for mask in given.values() if mask.shape == (len(x), *x.shape[2:])), None)
    rows = x.flatten(2).unflatten(1, sizes).permute(1, 0, 3, 2).flatten(1, 2)
    return rows if mask is None else rows[:, mask.flatten()]


@contextmanager
def hooked(model: nn.Module, hooks: Iterable[tuple[Site, Hook]], *, before: bool = False) -> Iterator[None]:
    """Forward hooks on sites in a `with` block: one on each module that shares the weight, whatever its paths.

    Args:
        model: The network that holds the sites.
        hooks: Sites, each with its hook.
        before: Call the hooks before the module runs, with None for its output.
    """
    with ExitStack() as stack:
        for site, hook in hooks:
            for module in {id(module): module for module in map(model.get_submodule, site.paths)}.values():
                # Of an embedding and the linear layer tied to it, the inputs of the embedding.
                if (kind_of(module) or "linear") == site.kind:
                    if before:
                        handle = module.register_forward_pre_hook(positional(hook), with_kwargs=True)
                    else:
                        handle = module.register_forward_hook(positional(hook), with_kwargs=True)
                    stack.callback(handle.remove)
        yield


def positional(hook: Hook) -> Callable[..., Any]:
    """A hook that finds the input among the arguments, however it was passed."""
    return lambda module, args, kwargs, out=None: hook(module, args or tuple(kwargs.values()), out)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """A `with` block in which the weights of a network need no gradient."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
