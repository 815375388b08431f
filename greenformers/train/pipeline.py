"""Pipeline parallelism with micro-batches: the GPipe schedule. Huang 2019, arXiv:1811.06965.

Each process trains some consecutive layers on its device; a batch passes through the stages in parts, all forward, then
all backward. With more processes than stages there are several such pipelines, replicas, each of which has its rows of
the batch, and their gradients are added. The whole model stays in CPU memory, to be scored and saved.
"""

import copy
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.optim import AdamW
from transformers import PreTrainedModel

from greenformers.attention import Attention
from greenformers.feed_forward import FeedForward
from greenformers.model._transformers import parameters_outside
from greenformers.model.embedding import counted
from greenformers.model.stack import run
from greenformers.train.objective import Batch
from greenformers.train.rates import learning_rates
from greenformers.train.schedule import Schedule


class Stage(nn.Module):
    """Consecutive layers of a model; the first stage also has the embedding, the last one computes the loss.

    Args:
        model: A model with a single stack of layers.
        index: Index of the stage, from 0.
        stages: Number of stages.

    Attributes:
        items: Number of labels of the whole batch, by which the loss of a micro-batch is divided.

    Raises:
        ValueError: There are more stages than layers, or the model is not a single stack of standard layers.
    """

    def __init__(self, model: PreTrainedModel, index: int, stages: int) -> None:
        super().__init__()
        base = cast(Any, model.base_model)
        if not hasattr(model, "head"):
            raise ValueError(f"a pipeline needs a single stack of layers, {type(model).__name__} has more")
        if stages > len(base.layers):
            raise ValueError(f"a pipeline has at most a stage a layer, {len(base.layers)}, got {stages}")
        if tied := [name for name in model.all_tied_weights_keys if ".layers." in name]:
            raise ValueError(f"a pipeline cannot share weights between layers, this network shares {tied[0]}")
        if any(isinstance(module, Attention | FeedForward) and module.has_loss for module in base.modules()):
            raise ValueError(
                "a pipeline cannot add the loss of an attention or a feed-forward block, this network has one"
            )
        if base.config.block != "standard" or base.config.memory_length:
            raise ValueError(
                "a pipeline passes on hidden states only, this network's blocks or segment memory need more"
            )
        if base.depth is not None:
            raise ValueError(f"a pipeline runs every layer once, this network's depth is {base.config.depth}")
        if base.layers[0].reversible:
            raise ValueError("a pipeline passes one stream on, this network is reversible and has two")
        low, high = (len(base.layers) * place // stages for place in (index, index + 1))
        self.layers = nn.ModuleList(base.layers[low:high])
        self.first = nn.ModuleDict({"embedding": base.embedding} if index == 0 else {})
        heads = {name: part for name, part in model.named_children() if name != model.base_model_prefix}
        pool = {} if getattr(base, "pool", None) is None else {"pool": base.pool}
        self.last = nn.ModuleDict({"final_norm": base.final_norm, **pool, **heads} if index == stages - 1 else {})
        self.items = 1
        self._whole = (model,)  # in a tuple: not a part of this module

    def forward(self, x: Tensor, key_mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        """Hidden states (B, N, d) for the next stage; from the last one the loss (1,) of a micro-batch."""
        model = cast(Any, self._whole[0])
        positions = counted(key_mask)
        if self.first:
            given = {"input_values" if x.is_floating_point() else "input_ids": x}
            x = model.base_model.embedding(**given, positions=positions)
        x = run(self.layers, x, key_mask, positions=positions).x
        if not self.last:
            return x
        out = model.base_model.finish(x, key_mask)
        return model.head(out, labels, self.items).loss.reshape(1)


def checked(
    model: PreTrainedModel, schedule: Schedule, micro_batches: int, stages: int | None, processes: int
) -> int:  # fmt: skip
    """The number of stages.

    Args:
        model: The model.
        schedule: How it is trained; patience, accumulate, shard, precision, optimizer and low_rank_training must be the
            defaults.
        micro_batches: Number of parts of a batch.
        stages: Number of stages; None: as many as processes.
        processes: Number of processes.

    Raises:
        ValueError: The model or the schedule cannot be divided into stages.
    """
    if processes == 1:
        raise ValueError("micro_batches needs several processes: start the run with torchrun")
    plain = Schedule()
    for name in ("patience", "accumulate", "shard", "precision", "optimizer", "low_rank_training"):
        if getattr(schedule, name) != getattr(plain, name):
            raise ValueError(f"{name} must be {getattr(plain, name)} in a pipeline, got {getattr(schedule, name)}")
    count = processes if stages is None else stages
    if count < 2 or processes % count:
        raise ValueError(f"stages must be at least 2 and divide the processes, {processes}, got {count}")
    replicas = processes // count
    if micro_batches < 1 or schedule.batch_size % (micro_batches * replicas):
        over = f", over its {replicas} replicas" if replicas > 1 else ""
        raise ValueError(f"micro_batches must divide the batch, {schedule.batch_size}{over}, got {micro_batches}")
    Stage(model, 0, count)  # which refuses what cannot be spread
    return count


def tensors(stage: Stage) -> list[Tensor]:
    """Parameters and buffers of a stage."""
    return [*stage.parameters(), *stage.buffers()]


def member_of(groups: list[list[int]], own: int) -> dist.ProcessGroup:
    """Make groups of processes, in which every process has to take part, and return the one of a number."""
    return [dist.new_group(ranks) for ranks in groups][own]


class Pipeline:
    """A model spread over processes, with its optimiser: AdamW, and its learning rates.

    Args:
        model: The model, the same in every process; each trains its stage of it.
        schedule: How long and how fast the model is trained.
        steps: Optimisation steps of the whole run.
        micro_batches: Number of parts of a batch.
        stages: Number of stages; None: as many as processes, else as many replicas as processes over stages.
        device: Device of this process.

    Raises:
        ValueError: The model or the schedule cannot be divided into stages.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        schedule: Schedule,
        steps: int,
        micro_batches: int,
        stages: int | None,
        device: torch.device,
    ) -> None:
        self.rank, world = dist.get_rank(), dist.get_world_size()
        self.stages = checked(model, schedule, micro_batches, stages, world)
        self.replicas, self.clip = world // self.stages, schedule.clip
        self.index, self.replica = self.rank % self.stages, self.rank // self.stages
        self.whole = copy.deepcopy(model)  # to be scored and saved; it stays in CPU memory
        self.gloo = dist.new_group(backend="gloo")
        lines = [[self.stages * replica + index for index in range(self.stages)] for replica in range(self.replicas)]
        line = member_of(lines, self.replica)
        self.ends = member_of([[ranks[0], ranks[-1]] for ranks in lines], self.replica)
        self.equals = member_of([list(ranks) for ranks in zip(*lines, strict=True)], self.index)
        parts = [Stage(model, index, self.stages) for index in range(self.stages)]
        # A weight that is embedding and output projection at once is in both ends; the first stage owns it.
        self.tied = [p for p in parts[0].parameters() if any(p is q for q in parts[-1].last.parameters())]
        names = {id(x): name for name, x in (*model.named_parameters(), *model.named_buffers())}
        self.owner = {names[id(x)]: index for index in reversed(range(self.stages)) for x in tensors(parts[index])}
        # Where a buffer is, as another device has another tensor.
        self.buffers = {
            names[id(x)]: (module, name)
            for module in parts[self.index].modules()
            for name, x in module.named_buffers(recurse=False)
        }
        self.stage = parts[self.index].to(device)
        self.own = {names[id(parameter)]: parameter for parameter in self.stage.parameters()}
        self.optimizer = AdamW(self._groups(model, schedule.weight_decay), lr=schedule.learning_rate, fused=True)
        self.rates = learning_rates(self.optimizer, steps, schedule.warmup, schedule.decay)
        link = PipelineStage(self.stage, self.index, self.stages, device, group=line)
        self.gpipe = ScheduleGPipe(link, micro_batches, loss_fn=lambda loss, _: loss.sum(), scale_grads=False)

    def _groups(self, model: PreTrainedModel, decay: float) -> list[dict[str, object]]:
        """Parameter groups of AdamW: normalisations and biases do not decay, as with the Trainer."""
        names = ["bias", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
        decaying = set(parameters_outside(model, [nn.LayerNorm, nn.RMSNorm], names))
        groups: list[dict[str, object]] = []
        for decays, rate in ((True, decay), (False, 0.0)):
            parameters = [p for name, p in self.own.items() if (name in decaying) == decays]
            groups.append({"params": parameters, "weight_decay": rate})
        return groups

    def step(self, batch: Batch, items: int) -> float:
        """One optimisation step on a batch of `items` labels; returns its loss."""
        self.stage.items = items
        device = next(self.stage.parameters()).device
        rows = next(iter(batch.values())).shape[0] // self.replicas
        own = slice(self.replica * rows, (self.replica + 1) * rows)
        given = {name: value[own].to(device) for name, value in batch.items()}
        if self.replicas > 1:  # statistics that are not parameters are those of the first replica
            for module, name in self.buffers.values():
                dist.broadcast(getattr(module, name), self.index, group=self.equals)
        inputs = [given["input_ids" if "input_ids" in given else "input_values"]] if self.index == 0 else []
        options: dict[str, Any] = {"key_mask": given["attention_mask"].bool()} if "attention_mask" in given else {}
        losses: list[Tensor] = []
        if self.index == self.stages - 1:
            labels = given["labels"]
            self.gpipe.step(*inputs, target=labels, losses=losses, return_outputs=False, labels=labels, **options)
        else:
            self.gpipe.step(*inputs, return_outputs=False, **options)
        for parameter in self.tied if self.index in (0, self.stages - 1) else []:
            dist.all_reduce(parameter.grad, group=self.ends)
        if self.replicas > 1:
            for parameter in self.own.values():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=self.equals)
        self._clip()
        self.optimizer.step()
        self.rates.step()
        self.optimizer.zero_grad()
        loss = torch.stack(losses).sum().detach().cpu() if losses else torch.zeros(())
        dist.all_reduce(loss, group=self.gloo)  # of every replica the loss of its rows
        return loss.item()

    def _clip(self) -> None:
        """Clip the gradient by its norm over all stages together."""
        mine = [p.grad for name, p in self.own.items() if self.owner[name] == self.index and p.grad is not None]
        square = torch.stack([grad.square().sum() for grad in mine]).sum().cpu()
        dist.all_reduce(square, group=self.gloo)
        if self.clip:
            factor = self.clip / ((square / self.replicas).sqrt().item() + 1e-6)
            for parameter in self.own.values():
                if parameter.grad is not None and factor < 1:
                    parameter.grad.mul_(factor)

    def gather(self) -> tuple[PreTrainedModel, dict[str, Tensor]]:
        """The whole model and the state of the optimiser, in every process, in CPU memory."""
        moments: dict[str, Tensor] = {}
        for name, tensor in self.whole.named_parameters():
            owner = self.owner[name]
            mine = self.own[name] if owner == self.rank else None
            self._spread(tensor.data, None if mine is None else mine.detach(), owner)
            for kind in ("exp_avg", "exp_avg_sq", "step"):
                # A pooling that the objective does not use has no gradients, and so none.
                held = None if mine is None else self.optimizer.state[mine].get(kind)
                moments[f"{name}/{kind}"] = torch.zeros(()) if kind == "step" else torch.zeros_like(tensor.data)
                self._spread(moments[f"{name}/{kind}"], held, owner)
        for name, buffer in self.whole.named_buffers():
            if name in self.owner:
                module, key = self.buffers[name] if self.owner[name] == self.rank else (None, "")
                self._spread(buffer, None if module is None else getattr(module, key), self.owner[name])
        return self.whole, moments

    def _spread(self, target: Tensor, source: Tensor | None, owner: int) -> None:
        if source is not None:
            target.copy_(source)
        dist.broadcast(target, owner, group=self.gloo)
