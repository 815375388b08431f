"""What each of several processes holds in training: everything, or its share by the stages of ZeRO.

    python benchmarks/zero_stages.py [--quick] [--processes 4] [--json results/zero_stages.jsonl]

A masked language model of 6 layers of width 512 in float32 with AdamW, on gloo, every process with its own rows. With
P bytes of parameters, as many of gradients and twice as many of the optimiser's averages, a process of n holds
(Rajbhandari 2020, arXiv:1910.02054, section 5, which counts half precision)

    whole (data-parallel)                       4 P
    stage 1, averages shared out                2 P + 2 P / n
    stage 2, gradients too                      P + 3 P / n
    stage 3, parameters too                     4 P / n

Stage 1 is torch's ZeroRedundancyOptimizer, stages 2 and 3 are FSDP2, which gathers parameters in the forward pass and
keeps them until the end of the backward pass (stage 2) or for one layer at a time (stage 3, `greenformers train
--shard`). What is held of parameters, gradients and averages is counted after the forward and after the backward pass;
the more of both is set beside the formula. Losses beside those of the whole model. Bar: within 5 % of the formula.
"""

import multiprocessing
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from _harness import Benchmark, Option, Run, yes
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from greenformers.model import GreenformerConfig, GreenformerForMaskedLM
from greenformers.model._transformers import whole_layers

MOMENTS = ("after the forward pass", "after the backward pass")
NETWORK = {
    "vocab_size": 1000, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, "num_hidden_layers": 6,
    "max_position_embeddings": 32, "hidden_dropout_prob": 0.0,
}  # fmt: skip
QUICK = NETWORK | {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2}
ROWS, LENGTH, STEPS, WITHIN, MIB = 1, 32, 3, 0.05, 2**20

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="a network of 2 layers of width 64",
    threads=1,
    options=(Option("--processes", "number of processes", int, 4),),
)


def main(run: Run) -> bool:
    count, network = run.given.processes, QUICK if run.quick else NETWORK
    if count < 2:
        run.refuse(f"--processes must be at least 2, got {count}")
    setting = {"processes": count} | {name: network[name] for name in ("hidden_size", "num_hidden_layers")}
    formulas = {
        "whole": 4.0, "stage 1": 2 + 2 / count, "stage 2": 1 + 3 / count, "stage 3": 4 / count,
    }  # fmt: skip
    table = Table("", *MOMENTS, "formula", "loss", title=f"MiB in one of {count} processes")
    records, apart, losses = [], [], []
    for stage, share in formulas.items():
        figures = measured(stage, network, count)
        held, expected = max(figures[name] for name in MOMENTS), share * figures["whole"]
        apart.append(abs(held / expected - 1))
        losses.append(figures["loss"])
        table.add_row(
            stage, *(f"{figures[name] / MIB:.1f}" for name in MOMENTS), f"{expected / MIB:.1f}",
            f"{figures['loss']:.5f}",
        )  # fmt: skip
        records += [
            run.record("held_memory_training", held / MIB, stage, setting, source="counted"),
            run.record("held_memory_training", expected / MIB, stage, setting | {"by": "formula"}, source="estimated"),
        ]
    run.show(table)
    run.write(records)
    same = max(losses) - min(losses)
    print(f"held within {WITHIN:.0%} of the formula: {yes(max(apart) <= WITHIN)}; losses differ by {same:.1e}")
    return max(apart) <= WITHIN and same < 1e-4


def measured(stage: str, network: dict[str, Any], count: int) -> dict[str, float]:
    """Bytes that the first process holds at `MOMENTS`, those of all parameters, and the mean loss of the last step."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    told: Any = context.Queue()
    members = [context.Process(target=trained, args=(stage, network, rank, count, port, told)) for rank in range(count)]
    for member in members:
        member.start()
    try:
        answers = [told.get(timeout=300) for _ in members]
    finally:
        for member in members:
            member.join(60)
            with suppress(ProcessLookupError):
                member.kill()
    first: dict[str, float] = next(answer for answer in answers if answer["rank"] == 0)
    return first | {"loss": sum(answer["loss"] for answer in answers) / count}


def trained(stage: str, network: dict[str, Any], rank: int, count: int, port: int, told: Any) -> None:
    """Train in one of the processes, and tell what it holds."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(count)}
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = GreenformerForMaskedLM(GreenformerConfig(**network)).train()
    optimizer: torch.optim.Optimizer
    if stage in ("whole", "stage 1"):
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        parameters = list(model.parameters())
        optimizer = AdamW(parameters)
        if stage == "stage 1":
            from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns where it is imported

            optimizer = ZeroRedundancyOptimizer(parameters, AdamW)
    else:
        mesh = init_device_mesh("cpu", (count,))
        for layer in whole_layers(model):
            fully_shard(layer, mesh=mesh, reshard_after_forward=stage == "stage 3")
        fully_shard(model, mesh=mesh, reshard_after_forward=stage == "stage 3")
        optimizer = AdamW(model.parameters())
    draw = torch.Generator().manual_seed(rank)
    loss, held = 0.0, {"after the forward pass": 0, "after the backward pass": 0}

    def holds() -> int:
        states = getattr(optimizer, "optim", optimizer).state  # that of stage 1 holds one of a share
        averages = [x for state in states.values() for x in state.values() if isinstance(x, Tensor) and x.dim()]
        shards = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        parameters = [*model.parameters(), *shards]
        return size([*parameters, *averages, *(p.grad for p in parameters if p.grad is not None)])

    def step() -> None:
        nonlocal loss
        ids = torch.randint(4, network["vocab_size"], (ROWS, LENGTH), generator=draw)
        out = model(input_ids=ids, labels=ids).loss
        loss, held["after the forward pass"] = out.item(), holds()
        out.backward()
        held["after the backward pass"] = holds()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(STEPS):
        step()
    whole = sum(p.numel() * p.element_size() for p in model.parameters())
    told.put({"rank": rank, "loss": loss, "whole": whole, **held})
    dist.barrier()
    dist.destroy_process_group()


def size(tensors: Iterable[Tensor]) -> int:
    """Bytes of what this process holds of some tensors, each storage once."""
    own = [x.to_local() if isinstance(x, DTensor) else x for x in tensors]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in own if x.numel()}
    return sum(storages.values())


if __name__ == "__main__":
    BENCHMARK.run(main)
