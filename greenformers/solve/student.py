"""The start of a narrower student: its teacher's layers in fewer hidden coordinates, fitted to what the teacher's give.

With orthonormal columns U (d, d') the student's stream is to be U^T h where the teacher's is h:

    writers:  W -> U^T W,  bias -> U^T bias,  embedding E -> E U
    readers:  W -> W U
    norms:    h' = w' z' + b', with w' and b' of each coordinate by least squares to U^T h

A norm divides each coordinate by the size of all and then scales it by itself, which no U but a choice of coordinates
passes; so layers and norms are fitted one after the other, in the order of execution, to U^T of what the teacher's give
(`greenformers.solve.imitate`). U holds the directions of the stream with most energy, or picks coordinates.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from greenformers.solve.hidden_width import HiddenWidth, layer_of
from greenformers.solve.imitate import Imitate
from greenformers.solve.narrow import Exchange, like
from greenformers.solve.norms import norm_form
from greenformers.solve.rotation import directions, unit_columns
from greenformers.solve.watch import Batch

Progress = Callable[[float], None]


def principal_states(
    model: nn.Module, width: HiddenWidth, batches: Sequence[Batch], narrow: int, progress: Progress = lambda _: None
) -> tuple[Tensor, float]:
    """The directions of the stream with most energy, each position divided by its root mean square.

    Where norms read the stream itself, these are of the inputs of the norms; where norms give it (post-norm), of their
    outputs. Norms that subtract the mean are to find none in a stream that they read: its coordinates are then
    directions in d' dimensions whose sum is 0, one fewer.

    Args:
        model: The network, left as it was.
        width: Its hidden width.
        batches: Batches of examples.
        narrow: Number d' of coordinates.
        progress: Function that is called with the share of the batches that is done.

    Returns:
        Orthonormal columns U (d, d'), float64, but where the sum is 0 of rank d' - 1; the share of the energy in them.

    Raises:
        ValueError: A norm is of another form than these.
    """
    forms = {}
    for path in width.norms:
        form = norm_form(model.get_submodule(path))
        if form is None:
            raise ValueError(f"{type(model).__name__} has in {path} a norm that no direction passes: start pruned")
        forms[path] = form
    given = any(set(width.norms) & width.sources.get(path, frozenset()) for path in width.norms)
    centred = not given and any(form.centred for form in forms.values())
    vectors, energy = directions(model, width, batches, centred=centred, outputs=given, progress=progress)
    count = narrow - 1 if centred else narrow
    basis = vectors[:, :count]
    if centred:
        basis = basis @ _of_sum_0(narrow).to(basis).T
    return basis, (energy[:count].sum() / energy.sum()).item()


def _of_sum_0(n: int) -> Tensor:
    """Orthonormal columns (n, n - 1), each of sum 0, float64."""
    directions = torch.eye(n, dtype=torch.float64)
    directions[:, 0] = 1
    return torch.linalg.qr(directions).Q[:, 1:]


def turn(exchange: Exchange, width: HiddenWidth, U: Tensor) -> None:
    """Put the stream of a network into the coordinates of columns U (d, d'); its norms scale by the mean of before.

    Args:
        exchange: The network.
        width: Its hidden width, where coordinates of shared weights are the same.
        U: Columns, float64.
    """
    parts: dict[int, nn.Parameter] = {}
    for path, dimensions in width.dimensions.items():
        layer = layer_of(exchange.model.get_submodule(path))
        assert layer is not None
        values: dict[str, nn.Parameter] = {}
        for name in dict.fromkeys(name for name, _ in dimensions):
            before: nn.Parameter = getattr(layer.module, name)
            if id(before) not in parts:
                value = before.detach().double()
                for at in (at for other, at in dimensions if other == name):
                    across = value.movedim(at, -1)
                    across = across.mean(-1, keepdim=True).expand(*across.shape[:-1], U.shape[1]) if (
                        layer.kind == "norm"
                    ) else across @ U.to(value.device)  # fmt: skip
                    value = across.movedim(-1, at)
                parts[id(before)] = like(before, value)
            values[name] = parts[id(before)]
        exchange.parameters(path, values)


def cut_elsewhere(exchange: Exchange, size: int, narrow: int, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Cut what is as wide as the stream and no part of it, as a pooled state is, to those with most weight.

    Args:
        exchange: The network, whose stream has been cut.
        size: Number d of coordinates.
        narrow: Number d' of them that is left.
        shapes: Shapes of the parameters that the network is to have, by name.

    Returns:
        What is left of the outputs (d,) of linear layers, as a matrix (d, d') by path.
    """
    dimensions = [
        (path, name, at)
        for path, module in exchange.model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        for shape in [shapes.get(f"{path}.{name}" if path else name, parameter.shape)]
        for at in range(parameter.dim())
        if len(shape) == parameter.dim() and (parameter.shape[at], shape[at]) == (size, narrow)
    ]
    if not dimensions:
        return {}
    weight = torch.zeros(size, dtype=torch.float64)
    for path, name, at in dimensions:
        value: Tensor = getattr(exchange.model.get_submodule(path), name).detach().double().cpu()
        if value.dim() > 1:
            of_coordinates = value.square().movedim(at, 0).flatten(1).sum(1)
            weight += of_coordinates / of_coordinates.sum().clamp(min=torch.finfo(torch.float64).tiny)
    left = weight.topk(narrow).indices.sort().values
    outputs = {}
    for path in dict.fromkeys(path for path, _, _ in dimensions):
        layer = layer_of(exchange.model.get_submodule(path))
        assert layer is not None
        values: dict[str, nn.Parameter] = {}
        for _, name, at in (entry for entry in dimensions if entry[0] == path):
            before: nn.Parameter = getattr(layer.module, name)
            value = values.get(name, before)
            values[name] = like(before, value.detach().index_select(at, left.to(before.device)))
            if layer.kind == "linear" and (name, at) in layer.outputs:
                outputs[path] = unit_columns(left, size)
        exchange.parameters(path, values)
    return outputs


def fit(
    student: nn.Module,
    teacher: nn.Module,
    width: HiddenWidth,
    U: Tensor,
    batches: Sequence[Batch],
    *,
    outputs: Mapping[str, Tensor] | None = None,
    skip: Sequence[nn.Module] = (),
    memory: float = 2**30,
    progress: Progress = lambda _: None,
) -> None:
    """Fit the linear layers and norms of a student, in the order of execution, to U^T of what its teacher's give.

    Args:
        student: The student, whose stream is in the coordinates of U; changed.
        teacher: A network of the same layers, left as it was.
        width: Its hidden width.
        U: Columns (d, d'), float64.
        batches: Batches of examples.
        outputs: What is left of the outputs (m,) of layers that do not write the stream, as a matrix (m, m') by path.
        skip: Layers of the student that are not fitted.
        memory: Bytes of outputs of finished layers that may be held.
        progress: Function that is called with the share that is done.
    """
    fitting = Imitate(student, teacher, batches, memory)
    paths = [
        path
        for path in width.calls
        if path in (*width.order, *width.norms) and not any(student.get_submodule(path) is layer for layer in skip)
    ]
    for number, path in enumerate(paths):
        if path in width.norms:
            fitting.fit_norm(path, width.calls[path], U)
        else:
            left = U if path in width.writers else (outputs or {}).get(path)
            fitting.fit(path, width.calls[path], left)
        progress((number + 1) / len(paths))
