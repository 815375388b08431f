"""A network whose blocks are read from disk, one section at a time, each as a small network of its own.

A section is one block, or a few that follow each other. Blocks are the members of the one stack of layers that the
configuration counts. The network itself stays on the meta device. Its parts around the stack, embeddings and output
layers, run with hollow blocks: these have the class and the attributes of the blocks and no weights, and note what they
are called with.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from greenformers._torch import leaves, without_parameters
from greenformers.changes._stacks import stacks
from greenformers.measure.quality import evaluating
from greenformers.model._transformers import all_ties
from greenformers.solve.stream import OTHER_NAMES, Stored
from greenformers.solve.watch import call

Tensors = Mapping[str, Tensor]
"""Tensors by their names in the whole network."""


class Arguments(NamedTuple):
    """What a block is called with besides the hidden states: masks, positions, and so on."""

    positional: tuple[Any, ...]
    named: dict[str, Any]


Embed = Callable[[Mapping[str, Any]], tuple[Tensor, list[Arguments]]]
"""Function that gives the hidden states that the first block reads of a batch, and what each block is called with."""


class Section(nn.Module):
    """A network of a few consecutive blocks, which stand at the paths that they have in the whole network.

    Args:
        path: Path of the stack.
        blocks: The blocks, by their number in it.
    """

    def __init__(self, path: str, blocks: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self._paths = [f"{path}.{number}" for number in blocks]
        *around, name = path.split(".")
        here: nn.Module = self
        for part in around:
            inner = nn.Module()
            here.add_module(part, inner)
            here = inner
        stack = nn.ModuleList()
        for number, block in blocks.items():
            stack.add_module(str(number), block)
        here.add_module(name, stack)

    def forward(
        self, hidden_states: Tensor, arguments: Sequence[Arguments], attention_mask: Tensor | None = None
    ) -> Tensor:
        """The hidden states (B, N, d) behind the blocks; the mask (B, N) says which positions are padding."""
        for place, given in enumerate(arguments):
            hidden_states = _states(self.called(place, hidden_states, given))
        return hidden_states

    def called(self, place: int, hidden_states: Tensor, arguments: Arguments) -> Any:
        """All that one of the blocks returns."""
        return self.get_submodule(self._paths[place])(hidden_states, *arguments.positional, **arguments.named)


class Blocks:
    """The blocks of a network and the parts around them.

    Args:
        model: The network on the meta device, with its buffers.
        stored: Its tensors on disk, by name.
        at_once: Number of blocks in a section; the last one may have fewer.

    Attributes:
        model: The network.
        path: Path of the stack.
        layers: Number of blocks.
        sections: The numbers of the blocks of each section.

    Raises:
        ValueError: The network is not made of one stack of blocks, or has other tensors than those on disk; or
            `at_once` is out of range.
    """

    def __init__(self, model: PreTrainedModel, stored: Mapping[str, Stored], at_once: int = 1) -> None:
        name = type(model).__name__
        if getattr(model.config, "is_encoder_decoder", False):
            raise ValueError(f"{name} is an encoder-decoder: block by block, from disk, a network must be one stack")
        by_path = stacks(model)
        if len(by_path) > 1:
            raise ValueError(f"{name} has {len(by_path)} stacks of layers, {', '.join(by_path)}: it must have one")
        ((self.path, stack),) = by_path.items()
        self.model, self.layers, self._stored = model, len(stack), stored
        if not 1 <= at_once <= self.layers:
            raise ValueError(f"blocks at once must be 1 to {self.layers}, the blocks of the network; got {at_once}")
        self.sections = [
            range(first, min(first + at_once, self.layers)) for first in range(0, self.layers, at_once)
        ]  # fmt: skip
        self._rebuilt: Callable[[Tensor], Any] | None = None
        own, tied = model.state_dict(), all_ties(model)
        lacking = [key for key in own if key not in stored and key not in tied]
        foreign = [key for key in stored if key not in own]
        if lacking or foreign:
            which = f"has no {lacking[0]}" if lacking else f"holds {foreign[0]}, which the network does not have"
            raise ValueError(f"the checkpoint {which}: {OTHER_NAMES}")

    @property
    def count(self) -> int:
        """Number of sections."""
        return len(self.sections)

    @property
    def in_words(self) -> str:
        """How many blocks there are, and how many are changed at a time."""
        most = len(self.sections[0])
        return f"{self.layers} blocks, {'one' if most == 1 else most} at a time"

    def of(self, number: int, by_block: Sequence[Arguments]) -> list[Arguments]:
        """Of what all blocks are called with, that of the blocks of a section."""
        return [by_block[block] for block in self.sections[number]]

    def name(self, number: int) -> str:
        """A section in words, such as "block 3 of 12" or "blocks 3 to 4 of 12"."""
        first, last = self.sections[number][0] + 1, self.sections[number][-1] + 1
        return f"block{f' {first}' if first == last else f's {first} to {last}'} of {self.layers}"

    def keys(self, number: int | None) -> list[str]:
        """The names of the stored tensors of a section, or, for None, of the parts around the blocks."""
        if number is not None:
            inside = tuple(f"{self.path}.{block}." for block in self.sections[number])
            return [key for key in self._stored if key.startswith(inside)]
        return [key for key in self._stored if not key.startswith(f"{self.path}.")]

    def bytes(self, number: int | None) -> int:
        """Bytes of these tensors."""
        return sum(self._stored[key].bytes for key in self.keys(number))

    def read(self, number: int | None) -> dict[str, Tensor]:
        """The tensors of a section, or of the parts around the blocks, from disk."""
        files: dict[Path, list[str]] = {}
        for key in self.keys(number):
            files.setdefault(self._stored[key].file, []).append(key)
        return {key: tensor for file, keys in files.items() for key, tensor in read_tensors(file, keys)}

    def network(self, number: int, tensors: Tensors) -> Section:
        """A network of the blocks of a section with these tensors."""
        stack: Any = self.model.get_submodule(self.path)
        network = Section(self.path, {block: copy.deepcopy(stack[block]) for block in self.sections[number]})
        _fill(network, tensors)
        return network.eval()

    @torch.no_grad()
    def learn(self, batch: Mapping[str, Any], network: Section) -> None:
        """Learn from the first section what blocks return besides hidden states.

        Raises:
            ValueError: They return more that is computed.
        """
        caught: list[tuple[Tensor, Arguments]] = []

        def stop(states: Tensor, arguments: Arguments) -> Any:
            caught.append((states, arguments))
            raise _Stopped

        with self.around(self.read(None), [stop] * self.layers) as model, evaluating(model), suppress(_Stopped):
            call(model, batch)
        given, arguments = caught[0]
        returned = network.called(0, given, arguments)
        if isinstance(returned, Tensor):
            self._rebuilt = lambda states: states
            return
        rest = returned[1:] if isinstance(returned, tuple) else (given,)
        if any(isinstance(leaf, Tensor) for leaf in leaves(rest)):
            raise ValueError(f"the blocks of {type(self.model).__name__} return more than hidden states")
        self._rebuilt = lambda states: (states, *rest)

    @contextmanager
    def around(
        self, tensors: Tensors, answers: Sequence[Callable[[Tensor, Arguments], Any]]
    ) -> Iterator[PreTrainedModel]:
        """A `with` block with a copy of the network in which functions answer in place of the blocks."""
        model = copy.deepcopy(self.model)
        stack: Any = model.get_submodule(self.path)
        for place, answer in enumerate(answers):
            stack[place] = _hollow(stack[place], answer)
        _fill(model, tensors)
        model.tie_weights()
        yield model.eval()

    @contextmanager
    def embedding(self, tensors: Tensors) -> Iterator[Embed]:
        """A `with` block with a function that runs what stands before the blocks.

        It raises ValueError where the network does not call its blocks once, one after the other, and nothing between.
        """
        called: list[tuple[Tensor, Arguments]] = []

        def note(states: Tensor, arguments: Arguments) -> Any:
            if called and called[-1][0] is not states:
                raise ValueError(f"{type(self.model).__name__} computes something between its blocks")
            called.append((states, arguments))
            assert self._rebuilt is not None
            return self._rebuilt(states)

        with self.around(tensors, [note] * self.layers) as model:

            def embed(batch: Mapping[str, Any]) -> tuple[Tensor, list[Arguments]]:
                called.clear()
                with torch.no_grad():
                    call(model, batch)
                if len(called) != self.layers:
                    raise ValueError(f"{type(model).__name__} calls {len(called)} of its {self.layers} blocks")
                return called[0][0], [arguments for _, arguments in called]

            yield embed

    def answering(self, last: Callable[[], Tensor]) -> list[Callable[[Tensor, Arguments], Any]]:
        """Answers of the blocks: the last one's is what the function gives, those of others do not matter."""
        rebuilt = self._rebuilt
        assert rebuilt is not None
        return [lambda states, _: rebuilt(states)] * (self.layers - 1) + [lambda *_: rebuilt(last())]


def read_tensors(file: Path, keys: Sequence[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a file, by name, in memory of their own, as torch aligns it."""
    with safe_open(file, framework="pt") as part:
        for key in part.keys() if keys is None else keys:
            yield key, part.get_tensor(key).clone()


class _Stopped(Exception):  # noqa: N818
    """The first block was reached: the rest of the network need not run."""


def _hollow(block: nn.Module, answer: Callable[[Tensor, Arguments], Any]) -> nn.Module:
    """A module of the class of a block, without anything in it, whose output is that of a function."""
    empty: Any = without_parameters(block)
    for name, _ in list(empty.named_children()):
        delattr(empty, name)

    def forward(*positional: Any, **named: Any) -> Any:
        states, rest = (positional[0], positional[1:]) if positional else (named.pop("hidden_states"), ())
        return answer(states, Arguments(rest, named))

    empty.forward = forward
    return empty


def _fill(module: nn.Module, tensors: Tensors) -> None:
    """Put tensors in the place of those on the meta device, in the number format that these have.

    Raises:
        ValueError: One has another shape.
    """
    own = module.state_dict()
    for key, tensor in tensors.items():
        if key in own and own[key].shape != tensor.shape:
            raise ValueError(
                f"{key} is {tuple(tensor.shape)} in the checkpoint, {tuple(own[key].shape)} by its configuration"
            )
    given = {
        key: tensor.to(own[key].dtype) if own[key].is_floating_point() and tensor.is_floating_point() else tensor
        for key, tensor in tensors.items()
        if key in own
    }
    module.load_state_dict(given, strict=False, assign=True)


def _states(returned: Any) -> Tensor:
    states: Tensor = returned if isinstance(returned, Tensor) else returned[0]
    return states
