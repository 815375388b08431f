"""The loss whose curvature the solver `loss` keeps, where the user gives none.

A language model has its own. For any other network it is how far the outputs move: with random probes v,
d = gradient of <v, output> gives E[d d^T] = the Gauss-Newton matrix of the squared change of the output.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

import torch
from torch import Tensor, nn

from greenformers.data._pooling import MEAN, SentencePooling, pooling_of
from greenformers.solve.share import Share
from greenformers.solve.watch import Batch, Loss, by_name, call, padding
from greenformers.train.processes import processes, rank

MANY = 2**16
"""Numbers an example in several outputs up to which all of them count; of more, the first."""
WIDE, NARROW = 2048, 512
"""Outputs of a position of which all are compared; and the random sums of them that are, where there are more."""


def own(model: nn.Module, batch: Batch) -> Tensor:
    """The loss that the model computes for the labels of the batch, or for its own next tokens.

    Raises:
        ValueError: The model gives no loss on this batch.
    """
    batch = by_name(model, batch)
    ids = batch.get("input_ids") if isinstance(batch, Mapping) and batch.get("labels") is None else None
    if ids is not None and generates(model):
        labels = ids
        if batch.get("attention_mask") is not None:
            labels = labels.masked_fill(~batch["attention_mask"].bool(), -100)
        batch = {**batch, "labels": labels}
    out = call(model, batch)
    loss = getattr(out, "loss", None)
    if loss is None:
        raise ValueError(f"{type(model).__name__} gives no loss on this batch: add labels, or pass a loss")
    # Means are over the tokens of a batch: times their number, so that long batches count as long.
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    config = getattr(model, "config", None)
    if type(model).__name__.endswith("ForCTC") and getattr(config, "ctc_loss_reduction", None) == "sum":
        return loss
    if labels is None:
        return loss
    logits = getattr(out, "logits", None)
    if loss.dtype in (torch.float16, torch.bfloat16):  # of a sum over a batch three digits would be left
        loss = loss.float()
        if logits is not None and logits.shape[:-1] == labels.shape and not labels.is_floating_point():
            flat = logits.float().flatten(0, -2)
            return torch.nn.functional.cross_entropy(flat, labels.flatten(), reduction="sum")
    return loss * (labels != -100).sum()


def generates(model: nn.Module) -> bool:
    """True for a causal language model: its labels are its inputs."""
    config = getattr(model, "config", None)
    return (
        config is not None
        and not getattr(config, "is_encoder_decoder", False)
        and callable(getattr(model, "can_generate", None))
        and bool(model.can_generate())  # type: ignore[operator]
    )


class Movement:
    """<v, output> for a probe v drawn anew for each batch, v ~ N(0, I), from the seed and the number of the batch.

    The output of a classifier or language model is its logits, at positions that are no padding; that of an encoder is
    the sentence embedding at unit length: the mean over the positions that are no padding, or the model's own pooling.
    Any other network's is the first tensor that it returns.

    Args:
        seed: Seed of the probes.
        numbers: Numbers of the first batch and from each to the next: those of one process, where several share them.
    """

    def __init__(self, seed: int = 0, numbers: tuple[int, int] = (0, 1)) -> None:
        self.generator, self.seed, self.numbers = torch.Generator(), seed, numbers
        self.restart()

    def restart(self) -> None:
        """Draw the same probes again: another pass over the data begins."""
        self.number, self.step = self.numbers

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """The projection of the output on the next probe."""
        out, mask = masked_output(model, batch)
        self.generator.manual_seed(Random(f"{self.seed} {self.number}").getrandbits(32))
        self.number += self.step
        out = out.float() if out.dtype in (torch.float16, torch.bfloat16) else out
        v = torch.randn(out.shape, generator=self.generator).to(out)
        return (v * out).sum() if mask is None else (v * out)[mask].sum()


def masked_output(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """The output of a network, and which of its positions are no padding; None where it is not of positions."""
    with padding(model) as masks:
        masks.begin(batch)
        returned = call(model, batch)
        out = output(returned, by_name(model, batch), pooling_of(model))
        given = list(masks.at(out).values())
    # A score of each position, as ELECTRA gives it, has the form of one of each class.
    classes = getattr(getattr(model, "config", None), "num_labels", None)
    scores = getattr(returned, "logits", None) is out and out.dim() == 2 and out.shape[1] != classes
    if out.dim() > 2 or scores:
        return out, next((mask for mask in given if out.shape[:2] == mask.shape), None)
    return out, next((mask.flatten() for mask in given if out.dim() == 2 and len(out) == mask.numel()), None)


def output(returned: object, batch: Batch, pool: SentencePooling = MEAN) -> Tensor:
    """The tensor that the network is used for, of all that it returns; states of an encoder are pooled by `pool`."""
    if isinstance(returned, Tensor):
        return returned
    start, end = (getattr(returned, f"{name}_logits", None) for name in ("start", "end"))
    if start is not None and end is not None:
        return torch.stack((start, end), -1)  # question answering: (B, N, 2)
    named = returned.items() if isinstance(returned, Mapping) else ()
    several = [x for name, x in named if name.endswith("logits") and isinstance(x, Tensor) and "router" not in name]
    # Scores of a vocabulary at each position would fill the memory.
    few = sum(x[0].numel() for x in several if len(x)) <= MANY
    if len(several) > 1 and len({len(x) for x in several}) == 1 and few:
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        return torch.cat([_where(mask, x).flatten(1) for x in several], 1)
    logits = getattr(returned, "logits", None)
    if logits is not None:
        return logits
    hidden = getattr(returned, "last_hidden_state", None)
    if hidden is not None:
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        if mask is not None and mask.shape != hidden.shape[:2]:
            mask = None  # of samples: recordings of a batch are of one length
        return torch.nn.functional.normalize(pool(hidden, mask), dim=-1) if hidden.dim() == 3 else hidden
    parts = returned.values() if isinstance(returned, Mapping) else returned if isinstance(returned, Sequence) else ()
    for part in parts:
        if isinstance(part, Tensor):
            return part
    raise ValueError(f"a {type(returned).__name__} holds no tensor: pass a loss")


def _where(mask: Tensor | None, x: Tensor) -> Tensor:
    """Outputs with 0 at positions that are padding, where they are (B, N, n)."""
    if mask is None or x.dim() < 3 or x.shape[:2] != mask.shape:
        return x
    return x.where(mask.bool().view(*mask.shape, *[1] * (x.dim() - 2)), 0)


def default(model: nn.Module, batches: Sequence[Batch], seed: int = 0) -> Loss:
    """`own` where the model gives a loss on these batches, else `Movement`."""
    batch = by_name(model, batches[0])
    labelled = isinstance(batch, Mapping) and batch.get("labels") is not None
    if labelled or generates(model):
        return own
    return Movement(seed, (rank(), processes()) if isinstance(batches, Share) else (0, 1))


def difference(model: nn.Module, batches: Sequence[Batch], loss: Loss | None = None) -> Callable[[int], float]:
    """How bad a network is that is changed after this call, on the batch of a number; to be called without gradients.

    That is the loss, where one is given or the model has one: of labels, or of a language model's next tokens. Else it
    is the squared distance of the outputs (of an encoder: of its pooled states) from those that it gives now.
    """
    if loss is not None or default(model, batches) is own:
        return lambda number: (loss or own)(model, batches[number]).item()

    def outputs(number: int) -> Tensor:
        out, mask = masked_output(model, batches[number])
        rows = (out if mask is None else out[mask]).float()
        return rows if rows.shape[-1] <= WIDE else rows @ projection(rows)

    def projection(rows: Tensor) -> Tensor:
        """A random matrix (n, `NARROW`) that keeps squared distances in the mean: a vocabulary has many scores."""
        draw = torch.Generator().manual_seed(0)
        return torch.randn(rows.shape[-1], NARROW, generator=draw).to(rows) * NARROW**-0.5

    whole = [outputs(number) for number in range(len(batches))]
    return lambda number: (outputs(number) - whole[number]).square().sum().item()
