"""Model-agnostic meta-learning: initial weights from which a few steps learn a new task. Finn 2017, arXiv:1703.03400.

With L the cross-entropy of a task's support or query images, alpha a rate and theta the weights, a task is learnt by

    theta_0 = theta,  theta_{s+1} = theta_s - alpha grad L_support(theta_s)                     (2.2)
    theta <- theta - beta Adam(mean over tasks of grad_theta L_query(theta_S))                  (eq. 1)

The gradient goes through the steps, which takes second derivatives. First-order MAML (5.2) leaves them out: its
gradient is that of L_query at theta_S. `functional_call` gives any module weights from outside, `grad` and `vmap` of
`torch.func` differentiate and do all tasks of a batch at once.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from greenformers.measure.quality import evaluating
from greenformers.train import checkpoint, state
from greenformers.train.episodes import Episode, Episodes
from greenformers.train.stream import generator

Weights = Mapping[str, Tensor]

_OPTIONS = "options.json"


@dataclass(frozen=True)
class Maml:
    """How a task is learnt from its support set, and the weights it starts with from many tasks.

    Attributes:
        steps: Number S of steps on a support set, in meta-training.
        rate: Learning rate alpha of these steps.
        first_order: Whether second derivatives are left out.
        at_once: Whether the tasks of a batch are computed at once by vmap, or one after another; some mechanisms cannot
            be vmapped, and grouped convolutions are slow on some processors.
        tasks: Number of tasks a meta-step.
        meta_rate: Highest learning rate beta of Adam; it falls to 0 by a cosine.
        clip: Largest norm of the meta-gradient, to which it is clipped.
        seed: Seed of the tasks.
    """

    steps: int = 1
    rate: float = 0.4
    first_order: bool = False
    at_once: bool = True
    tasks: int = 8
    meta_rate: float = 1e-3
    clip: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "tasks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("rate", "meta_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


def logits_of(model: nn.Module, weights: Weights, images: Tensor) -> Tensor:
    """Logits (B, C) of a module with other weights; a model of transformers gives them as `logits`."""
    out = functional_call(model, dict(weights), (images,))
    return out if isinstance(out, Tensor) else out.logits


def adapted(
    model: nn.Module, weights: Weights, support: Tensor, labels: Tensor, *, steps: int, rate: float
) -> dict[str, Tensor]:
    """Weights after some steps on a support set, as a function of those before, which can be differentiated.

    Args:
        model: Module from images to logits, with dropout off.
        weights: Its parameters by name.
        support: Images (B, ...).
        labels: Their classes (B,).
        steps: Number of steps of gradient descent.
        rate: Learning rate.
    """
    gradient = grad(lambda own: F.cross_entropy(logits_of(model, own, support), labels))
    own = dict(weights)
    for _ in range(steps):
        slopes = gradient(own)
        own = {name: value - rate * slopes[name] for name, value in own.items()}
    return own


def task_gradient(
    model: nn.Module, weights: Weights, task: Episode, *, steps: int, rate: float, first_order: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradient of the loss on one task's queries after learning, by the weights before; and the loss.

    Args:
        model: Module from images to logits, with dropout off.
        weights: Its parameters by name.
        task: One episode.
        steps: Number of steps on the support set.
        rate: Learning rate of these steps.
        first_order: Whether the gradient is that by the weights after learning, in place of those before.
    """

    def learnt(before: Weights) -> dict[str, Tensor]:
        return adapted(model, before, task.support, task.support_labels, steps=steps, rate=rate)

    def loss(after: Weights) -> Tensor:
        return F.cross_entropy(logits_of(model, after, task.queries), task.query_labels)

    if first_order:
        return grad_and_value(loss)(learnt(weights))
    return grad_and_value(lambda before: loss(learnt(before)))(dict(weights))


def meta_gradient(model: nn.Module, tasks: Episode, maml: Maml) -> tuple[dict[str, Tensor], Tensor]:
    """Mean gradient over E tasks by the parameters of a model, and the mean loss of their queries, in nats.

    Args:
        model: Module from images to logits, with dropout off.
        tasks: E episodes.
        maml: Options of learning.
    """
    weights = _weights(model)

    def gradient_of(task: Episode) -> tuple[dict[str, Tensor], Tensor]:
        return task_gradient(
            model, weights, task, steps=maml.steps, rate=maml.rate, first_order=maml.first_order
        )  # fmt: skip

    # The kernels that never hold the N x N weights have no second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        slopes, losses = vmap(gradient_of)(tasks) if maml.at_once else _one_by_one(gradient_of, tasks)
    return {name: slope.mean(0) for name, slope in slopes.items()}, losses.mean()


def meta_train(
    model: nn.Module,
    episodes: Episodes,
    maml: Maml,
    steps: int,
    said: Callable[[int, float], None] | None = None,
    *,
    folder: Path | None = None,
    save_every: int = 100,
) -> None:
    """Train the initial weights of a model in place.

    Args:
        model: Module from images to logits. It runs in evaluation mode, so that dropout is off.
        episodes: Tasks to learn from.
        maml: Options of learning.
        steps: Number of meta-steps, each on `maml.tasks` tasks.
        said: Function that is called after every meta-step with its number, from 1, and the mean loss of its queries.
        folder: Folder of checkpoints, from the newest of which training goes on; None: there are none.
        save_every: Meta-steps between checkpoints.

    Raises:
        ValueError: The number of meta-steps is below 1, or the checkpoints are of other options or of another model.
    """
    for name, value in (("steps", steps), ("save_every", save_every)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    optimizer = torch.optim.Adam(model.parameters(), maml.meta_rate)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    options, done = asdict(maml) | {"meta_steps": steps}, 0
    if folder is not None and (newest := checkpoint.newest(folder, warnings.warn)) is not None:
        if (others := json.loads((newest / _OPTIONS).read_text())) != options:
            raise ValueError(f"{folder} holds checkpoints of other options than {options}: {others}")
        state.load_weights(newest, model)
        state.load_optimizer(newest, dict(model.named_parameters()), optimizer)
        state.load_schedule(newest, rates, optimizer, None)
        done = rates.last_epoch

    def fill(unfinished: Path) -> None:
        state.save(unfinished, state.weights(model), state.optimizer_state(model, optimizer), rates, None)
        checkpoint.write_json(unfinished / _OPTIONS, options)

    with evaluating(model):
        for step in range(done + 1, steps + 1):
            slopes, loss = meta_gradient(model, episodes.draw(generator(maml.seed, 5, step), maml.tasks), maml)
            for name, parameter in model.named_parameters():
                parameter.grad = slopes[name]
            nn.utils.clip_grad_norm_(model.parameters(), maml.clip)
            optimizer.step()
            rates.step()
            if folder is not None and (step % save_every == 0 or step == steps):
                checkpoint.write(folder, step, fill, keep=1)
            if said is not None:
                said(step, loss.item())
    optimizer.zero_grad()


def few_shot_accuracies(
    model: nn.Module, episodes: Episodes, count: int, *, steps: int, rate: float, seed: int = 0
) -> Tensor:
    """Percentage of the queries told right after learning, in each of `count` episodes: (count,) float64.

    Args:
        model: Module from images to logits; it is left as it is.
        episodes: Episodes of classes that were not learnt.
        count: Number of episodes.
        steps: Number of steps on a support set.
        rate: Learning rate of these steps.
        seed: Seed of the episodes.
    """
    source, weights = generator(seed, 6), _weights(model)
    shares = []
    with evaluating(model), sdpa_kernel(SDPBackend.MATH):
        for _ in range(count):
            task = Episode(*(tensor[0] for tensor in episodes.draw(source, 1)))
            own = adapted(model, weights, task.support, task.support_labels, steps=steps, rate=rate)
            with torch.no_grad():
                right = logits_of(model, own, task.queries).argmax(-1) == task.query_labels
            shares.append(100 * right.double().mean())
    return torch.stack(shares)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _one_by_one(
    gradient_of: Callable[[Episode], tuple[dict[str, Tensor], Tensor]], tasks: Episode
) -> tuple[dict[str, Tensor], Tensor]:
    """What vmap gives, by a loop."""
    results = [gradient_of(Episode(*(tensor[number] for tensor in tasks))) for number in range(len(tasks.support))]
    slopes = {name: torch.stack([each[name] for each, _ in results]) for name in results[0][0]}
    return slopes, torch.stack([loss for _, loss in results])
