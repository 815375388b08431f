"""The Hugging Face Trainer with our order of examples, our evaluation and our checkpoints."""

import inspect
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from greenformers._tensors import save_file
from greenformers.measure.quality import NotANumberError
from greenformers.model.memory import SegmentMemory
from greenformers.train import checkpoint, state
from greenformers.train.bf16 import AttentionInFloat32
from greenformers.train.callbacks import ProductDecay, Reseed, Update, diverged
from greenformers.train.low_rank import factors
from greenformers.train.objective import Objective
from greenformers.train.optimizer import muon_and_adamw
from greenformers.train.rates import learning_rates
from greenformers.train.stream import Stream

MEMORY, BEST = "memory.safetensors", "best.safetensors"


def names_in(model: nn.Module, kind: type[nn.Module]) -> set[str]:
    """Names of the parameters that modules of a kind hold themselves."""
    return {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, kind)
        for name, _ in module.named_parameters(recurse=False)
    }


def check_memory(objective: Objective, processes: int, accumulate: int) -> None:
    """Check that the rows of a batch can go on where they stopped, as a segment memory needs it.

    Raises:
        ValueError: They cannot: a batch is computed in parts.
    """
    if objective.memory and (processes > 1 or accumulate > 1):
        raise ValueError("memory needs one process and accumulate 1: each row of a batch goes on where it stopped")


class ResumableTrainer(Trainer):
    """A Trainer whose weights are equal to the bit however often it is stopped: random draws follow from seed and step.

    Args:
        model: The model to train.
        arguments: Arguments of the Trainer; `output_dir` holds the checkpoints.
        stream: The training examples, in order.
        keep: Number of checkpoints to keep; 0: none is written.
        decay: Decay of the learning rate, see `learning_rates`.
        again: Number of steps after which the learning rate rises again, see `learning_rates`.
        muon_rate: Highest learning rate of Muon, see `muon_and_adamw`; None: AdamW trains all parameters.
        decays_products: Whether products of low-rank factors decay, and not the factors, see `ProductDecay`.
        callbacks: Callbacks, called at every event.
    """

    # The Trainer sets these while it runs; before, they are None.
    model: Any
    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        model: PreTrainedModel,
        arguments: TrainingArguments,
        stream: Stream,
        *,
        keep: int,
        decay: float | None,
        again: int | None,
        muon_rate: float | None,
        decays_products: bool,
        callbacks: list[TrainerCallback],
    ) -> None:
        super().__init__(
            model,
            arguments,
            train_dataset=stream,
            data_collator=stream.objective.collate,
            callbacks=[Reseed(stream.seed), Update(), *([ProductDecay()] if decays_products else []), *callbacks],
        )
        # Any **kwargs are taken for a promise to divide the loss by the labels of the whole batch, which classifiers of
        # transformers do not keep.
        self.model_accepts_loss_kwargs = "num_items_in_batch" in inspect.signature(model.forward).parameters
        self.remove_callback(PrinterCallback)
        self._stream, self._objective, self._keep = stream, stream.objective, keep
        self._memory = SegmentMemory(self._objective.memory)
        check_memory(self._objective, arguments.world_size, arguments.gradient_accumulation_steps)
        self._folder, self._decay, self._muon_rate = Path(arguments.output_dir or "."), decay, muon_rate
        self._again, self._decays_products = again, decays_products

    def _get_train_sampler(self, train_dataset: Dataset[Any] | None = None) -> Sampler[int]:
        return SequentialSampler(self._stream)

    def create_optimizer(self, model: Any = None) -> Any:
        """Make the optimiser: that of the Trainer, AdamW, or `muon_and_adamw`."""
        if self._muon_rate is None or self.optimizer is not None:
            return super().create_optimizer(model)
        model = self.model if model is None else model
        self.optimizer = muon_and_adamw(
            model, set(self.get_decay_parameter_names(model)), muon_rate=self._muon_rate,
            learning_rate=self.args.learning_rate, weight_decay=self.args.weight_decay,
            bf16=self.args.bf16 or self._objective.bf16,
        )  # fmt: skip
        return self.optimizer

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Names of the parameters that decay: those of the Trainer, without norms and factors whose product decays."""
        norms = names_in(model, nn.RMSNorm)
        names = [name for name in super().get_decay_parameter_names(model) if name not in norms]
        if not self._decays_products:
            return names
        apart = {id(factor) for pair in factors(model).values() for factor in pair}
        products = {name for name, parameter in model.named_parameters() if id(parameter) in apart}
        return [name for name in names if name not in products]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Make the learning rate scheduler, see `learning_rates`."""
        steps, warmup = num_training_steps, self.args.warmup_steps
        self.lr_scheduler = learning_rates(optimizer or self.optimizer, steps, warmup, self._decay, self._again)
        return self.lr_scheduler

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """A step of the Trainer, with attention in float32 where a CPU multiplies in bf16."""
        with AttentionInFloat32() if self.args.bf16 else nullcontext():
            return super().training_step(*args, **kwargs)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Loss of the Trainer; the segment memory, where the objective has one, is that of the step before."""
        if not self._objective.memory:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.state.global_step % self._stream.steps_an_epoch == 0:
            self._memory = SegmentMemory(self._objective.memory)
        loss, out = super().compute_loss(model, {**inputs, "memory": self._memory}, True, num_items_in_batch)
        self._memory = out.memory
        return (loss, out) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add an entry to the log; an epoch is a pass over the training set, not the whole stream."""
        self.state.epoch = self.state.global_step / self._stream.steps_an_epoch
        super().log(logs, start_time)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Score the validation split, as the objective does; every process scores all of it.

        The first one's scores count, so that all agree when training ends: processors differ in the last bit.
        """
        try:
            scores = self._objective.evaluate(self.model, "valid", self.args.per_device_eval_batch_size)
        except NotANumberError as error:
            raise diverged(
                self.args.learning_rate, self.state.global_step, "outputs are nan", self._muon_rate
            ) from error
        (scores,) = broadcast_object_list([scores])
        metrics = {f"eval_{name}": value for name, value in scores.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    @contextmanager
    def _defer_fsdp_gradient_reduction(self) -> Iterator[None]:
        """Sum the gradients over processes only in the backward pass of the last part of a batch."""
        self.model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.model.set_requires_gradient_sync(True)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if not self._keep:
            return
        whole = self.accelerator.unwrap_model(self.model_wrapped)
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        keep = self.is_world_process_zero()  # which writes them: n processes with all of it would hold n times as much
        tensors, moments = state.weights(whole, keep=keep), state.optimizer_state(whole, optimizer, keep=keep)

        def fill(folder: Path) -> None:
            state.save(folder, tensors, moments, self.lr_scheduler, self.accelerator.scaler)
            if self._best.is_file():
                shutil.copyfile(self._best, folder / BEST)
            if self._objective.memory:
                save_file(self._memory.tensors(), folder / MEMORY)
            self.state.save_to_json(str(folder / "trainer_state.json"))

        if keep:
            checkpoint.write(self._folder, self.state.global_step, fill, self._keep)
        self.accelerator.wait_for_everyone()

    @property
    def _best(self) -> Path:
        return self._folder / "best" / state.MODEL

    def save_best(self) -> None:
        """Save the weights as the best so far."""
        keep = self.is_world_process_zero()
        tensors = state.weights(self.accelerator.unwrap_model(self.model_wrapped), keep=keep)
        if keep:
            state.save_weights(self._folder / "best", tensors)

    def load_best(self) -> None:
        """Load the best weights."""
        state.load_weights(self._folder / "best", self.accelerator.unwrap_model(self.model_wrapped))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        state.load_weights(Path(resume_from_checkpoint), self.model if model is None else model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
            parameters = dict(self.accelerator.unwrap_model(self.model_wrapped).named_parameters())
            state.load_optimizer(Path(checkpoint), parameters, optimizer)
            state.load_schedule(Path(checkpoint), self.lr_scheduler, optimizer, self.accelerator.scaler)
            best = Path(checkpoint) / BEST  # of the scores so far; those of a process that was killed later may differ
            if best.is_file() and self.is_world_process_zero():
                state.save_weights(self._folder / "best", load_file(best))

        if checkpoint is not None and self._objective.memory:
            tensors = load_file(Path(checkpoint) / MEMORY)
            self._memory = SegmentMemory.read(self._objective.memory, tensors).to(self.args.device)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Do nothing: the scaler is loaded with the schedule."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Do nothing: `Reseed` seeds every step."""
