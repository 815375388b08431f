"""Rule 8 of the house: what a library does not promise to keep stands in one file, the wall to it.

The finder sees to that; a canary for each such name says what breaks, and where, when an upgrade drops it.
"""

import ast
import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from accelerate import Accelerator
from codecarbon import OfflineEmissionsTracker
from codecarbon.external.hardware import CPU
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Dataset
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel, Trainer, TrainerCallback
from transformers.cache_utils import CacheLayerMixin, DynamicLayer
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

PACKAGE = Path(__file__).parents[2] / "greenformers"
WALLS = {
    PACKAGE / name for name in ("_torch.py", "model/_transformers.py", "measure/_codecarbon.py", "train/_accelerate.py")
}

LIBRARIES = {"torch", "transformers", "codecarbon", "accelerate"}
INTERNAL = {
    "transformers.integrations", "transformers.masking_utils", "transformers.pytorch_utils",
    "transformers.trainer_pt_utils", "transformers.quantizers.auto.AUTO_QUANTIZER_MAPPING", "codecarbon.input",
}  # fmt: skip
"""Modules and names that are public by spelling alone."""
INTERNAL_ATTRIBUTES = {"quantized", "onednn", "kineto_results", "get_expanded_tied_weights_keys"}
"""Attributes that are public by spelling alone."""
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}


# The names behind the walls, and what breaks without them.

TORCH = {
    "torch._subclasses.fake_tensor.FakeTensor": "is_fake: AdaptiveSpan, tiled attention and the graph of bp read the "
    "content of tensors that have none, under torch.compile and in measure.trace",
    "torch._subclasses.fake_tensor.FakeTensorMode": "fake_tensors: measure.trace, and by it all predicted costs",
    "torch.utils._python_dispatch.TorchDispatchMode": "OperatorWatch: measure.trace, and by it all predicted costs",
    "torch._C._are_functorch_transforms_active": "in_transform: torch.func's transforms of mechanisms",
    "torch.overrides._get_current_function_mode_stack": "function_modes: reversible layers are computed back in "
    "another precision than forward",
    "torch.utils._pytree.tree_leaves": "leaves: measure.trace and solve.replay",
    "torch.utils._pytree.tree_map": "map_leaves: solve.replay",
    "torch._softmax_backward_data": "softmax_gradient: the backward pass of sinkhorn and other sorted blocks",
    "torch._int_mm": "int8_matmul: int8 layers on a GPU, compiled and exported",
    "torch._make_per_channel_quantized_tensor": "pack_int8: the fastest kernel of int8 layers on a CPU; others remain",
    "torch.ops.quantized.linear_prepack": "pack_int8: the fastest kernel of int8 layers on a CPU; others remain",
    "torch.ops.quantized.linear_dynamic": "int8_linear: the fastest kernel of int8 layers on a CPU; others remain",
    "torch.ops.quantized.linear": "operators.static_int8_linear: FLOPs that are refused would be counted as 0",
    "torch.ops.onednn.qlinear_prepack": "prepack_int8: wide int8 layers on a CPU without the fastest kernel are slower",
    "torch.ops.onednn.qlinear_pointwise": "prepacked_int8_matmul: wide int8 layers on a CPU without the fastest kernel "
    "are slower",
    "torch.ops.aten._convert_weight_to_int4pack_for_cpu": "pack_int4: texts are generated more slowly in few bits",
    "torch._weight_int4pack_mm_for_cpu": "int4_matmul: texts are generated more slowly in few bits",
    "torch.cpu._is_vnni_supported": "has_vnni: int8 layers on a CPU",
    "torch.ops.aten._int_mm": "operators.int8_matmul: FLOPs and ONNX form of int8 layers",
    "torch.ops.aten._grouped_mm": "operators.grouped_matmul: FLOPs of experts would be counted as 0",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "operators.cpu_attention: FLOPs of full attention",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward": "operators.cpu_attention_backward: FLOPs of "
    "full attention in training",
    "torch.ops.aten._cudnn_rnn": "operators.gpu_recurrence: FLOPs that are refused would be counted as 0",
    "torch.ops.aten._unsafe_view": "operators.unchecked_view: measure.trace counts a view as work",
    "torch.ops.aten._softmax": "operators.softmax: measure.trace takes a softmax for cheap",
    "torch.ops.aten._softmax_backward_data": "operators.softmax_backward: measure.trace takes a softmax for cheap",
    "torch.ops.aten._safe_softmax": "operators.safe_softmax: measure.trace misses the peak of masked attention",
    "torch.ops.aten._index_put_impl_": "operators.index_put: measure.trace takes scattered writes for cheap",
    "Tensor._version": "version: an int8 layer whose weight changes goes on with the old one",
    "Module._forward_hooks": "has_forward_hooks: projections of low rank that are observed are not called",
    "Module._forward_pre_hooks": "has_forward_hooks: projections of low rank that are observed are not called",
    "Module._parameters": "without_parameters: every change of mixtures of experts",
    "Module._modules": "without_parameters: every change of mixtures of experts",
    "Module._buffers": "without_parameters: every change of mixtures of experts",
    "Convolution._reversed_padding_repeated_twice": "padding_of: calibration of convolutions that pad by reflection",
    "create_block_mask(_compile)": "block_mask: patterns on a GPU, whose mask would be made whole",
    "torch._dynamo.exc.TorchDynamoException": "compile_error: latencies where torch.compile fails",
    "torch.onnx._internal.exporter._registration": "onnx_log: the exporter's complaints are printed",
    "Profile.kineto_results": "cpu_allocations: measure.memory",
}
TRANSFORMERS = {
    "transformers.integrations.sdpa_attention.sdpa_attention_forward": "plain_attention: models of which some layers "
    "were given another attention",
    "transformers.integrations.sdpa_attention.repeat_kv": "for_every_head: another attention in models with grouped "
    "queries",
    "transformers.masking_utils.causal_mask_function": "sees_past: another attention in decoders",
    "transformers.masking_utils.bidirectional_mask_function": "sees_all: another attention in encoders",
    "transformers.masking_utils.prepare_padding_mask": "kept_keys: another attention, with padding",
    "transformers.masking_utils.sdpa_mask": "whole_mask: another attention beside a pattern of the model's own",
    "transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "shift_labels_of: the Trainer's label "
    "smoothing teaches our causal models to repeat the token they read",
    "transformers.pytorch_utils.Conv1D": "TransposedLinear: every change of GPT-2 and its kin",
    "transformers.trainer_pt_utils.get_parameter_names": "parameters_outside: weight decay of a pipeline",
    "PreTrainedModel._can_set_attn_implementation": "can_choose_attention: another attention",
    "PreTrainedConfig._attn_implementation": "attention_of: another attention, and the measured spectrum",
    "PreTrainedConfig._attn_implementation_internal": "put_attention_back: a model that was looked at for another "
    "attention keeps the one it was looked at with",
    "PreTrainedModel._tied_weights_keys": "tied_weights, set_tied_weights: low-rank and int8 "
    "embeddings that are tied are saved twice, or not read",
    "PreTrainedModel.get_expanded_tied_weights_keys": "all_ties, refresh_ties: as tied_weights",
    "PreTrainedModel._keys_to_ignore_on_load_unexpected": "is_left_over: compression from disk to disk of checkpoints "
    "of older versions",
    "PreTrainedModel._from_config": "model_from_config: compression from disk to disk",
    "QuantizedConfig._is_quantized": "allow_training: compressed models that were loaded refuse .half() and training",
    "Loaded._is_hf_initialized": "was_loaded: trained embeddings of a padding token would be set to 0 when loaded; "
    "leave_as_made: weights are drawn for int8 layers at each load, and thrown away",
    "Experts.forward.__wrapped__": "experts_form: every change of mixtures of experts, which would leave experts out",
    "Experts.is_transposed": "experts_form: every change of mixtures of experts, which would leave experts out",
    "Experts.has_bias": "experts_form: every change of mixtures of experts",
    "Experts.has_gate": "experts_form, gated: every change of mixtures of experts",
    "Experts._apply_gate": "gated: changed experts cannot compute",
    "Experts.has_post_expert_norm": "normed: changed experts cannot compute",
    "PreTrainedModel._no_split_modules": "whole_layers: sharded training",
    "PreTrainedModel._is_distributed_loading_by_transformers": "mark_as_sharded: sharded training",
    "ShardedModel._is_fsdp_managed_module": "mark_as_sharded: sharded training",
}
CODECARBON = {
    "Tracker._scheduler": "start_sampling, stop_sampling: energy of calls over minutes",
    "Tracker._hardware": "cpu_readings: whether energy is measured or estimated",
    "Processor._mode": "cpu_readings: whether energy is measured or estimated",
}
ACCELERATE = {
    "accelerate.state.AcceleratorState._reset_state": "forget_group: a search in several processes heals its last "
    "recipe in each of them alone",
    "Prepared._is_accelerate_prepared": "as_before: a second training has the precision of the first",
    "Prepared._original_forward": "as_before: a trained model goes on computing in the precision of its training",
}
OVERRIDES = {
    "Module._apply": "the centroids of routing lose what they learn in bfloat16",
    "PreTrainedModel.get_expanded_tied_weights_keys": "what mechanisms share over layers is saved once a layer",
    "PreTrainedModel._can_record_outputs": "output_hidden_states of our models gives none",
    "PreTrainedModel._init_weights": "our models start with other weights",
    "PreTrainedModel._no_split_modules": "device_map and FSDP cut layers of ours in two",
    "PreTrainedModel._supports_sdpa": "our models refuse attn_implementation='sdpa', the default",
    "PreTrainedModel._tied_weights_keys": "heads of ours are no longer tied to their embedding",
    "Trainer._defer_fsdp_gradient_reduction": "sharded training with accumulate sums gradients for each part",
    "Trainer._get_train_sampler": "examples come in another order, and a resumed run differs",
    "Trainer._load_from_checkpoint": "a run is not resumed from its weights",
    "Trainer._load_optimizer_and_scheduler": "a run is resumed without its optimiser",
    "Trainer._load_rng_state": "a resumed run asks for a file that our checkpoints do not have",
    "Trainer._load_scaler": "a resumed run asks for a file that our checkpoints do not have",
    "Trainer._save_checkpoint": "checkpoints are the Trainer's, and not ours",
    "HfQuantizer._process_model_after_weight_loading": "loaded compressed models cannot be trained",
    "HfQuantizer._process_model_before_weight_loading": "compressed checkpoints cannot be loaded",
}
"""What our subclasses define because a class of a library calls it: it must stay with them."""
SPELLED_PUBLIC = {
    "torch.utils.flop_counter.sdpa_flop_count": "measure.flops",
    "torch.utils.flop_counter.sdpa_backward_flop_count": "measure.flops",
    "transformers.activations.ACT2FN": "model.config, model.block and model.heads: activations",
    "transformers.cache_utils.CacheLayerMixin": "model.cache, model.beams: states in the cache of generate",
    "transformers.cache_utils.DynamicLayer": "model.cache, speech.search: keys and values in the cache of generate",
    "transformers.modeling_layers.GradientCheckpointingLayer": "model.block: recomputed activations",
    "transformers.quantizers.auto.register_quantization_config": "checkpoint.plugin: loading compressed models",
    "transformers.quantizers.auto.register_quantizer": "checkpoint.plugin: loading compressed models",
    "transformers.trainer_callback.CallbackHandler": "train.fit_pipeline: events of a pipeline",
    "transformers.trainer_callback.DefaultFlowCallback": "train.fit_pipeline: events of a pipeline",
    "transformers.trainer_callback.PrinterCallback": "train.trainer: the Trainer's own printing",
    "transformers.utils.generic.can_return_tuple": "model.heads, model.seq2seq: return_dict=False",
    "transformers.utils.output_capturing.capture_outputs": "model.encoder, model.decoder: output_hidden_states",
    "OwnModel.all_tied_weights_keys": "train.task, train.pipeline: what is shared between layers",
    "Operator.is_view": "measure.trace: what is free",
    "Operator.overloadpacket": "measure.trace: which operator ran",
    "EncoderLayer.activation_relu_or_gelu": "lowrank.multihead: torch's fast path reads weights past their layers",
    "Encoder.use_nested_tensor": "lowrank.multihead: torch's fast path reads weights past their layers",
}
"""What stays where it is used, for it has no underscore, and yet no page of the documentation promises it."""


@cache
def own_model() -> PreTrainedModel:
    return transformers.BertModel(transformers.BertConfig(hidden_size=4, num_attention_heads=2, intermediate_size=4,
        num_hidden_layers=1, vocab_size=5, max_position_embeddings=3))  # fmt: skip


def experts() -> nn.Module:
    """Experts that can be computed in several ways."""
    config = transformers.MixtralConfig(hidden_size=4, intermediate_size=3, num_local_experts=2)
    module: nn.Module = importlib.import_module("transformers.models.mixtral.modeling_mixtral").MixtralExperts(config)
    return module


def quantized_config() -> PreTrainedConfig:
    """A configuration after transformers has marked its model as quantised."""
    model = SimpleNamespace(modules=lambda: [own_model()])
    mark: Callable[[Any], None] = importlib.import_module("transformers.quantizers.base")._assign_is_quantized
    mark(model)
    config = own_model().config
    own_model.cache_clear()
    return config


def sharded_model() -> Any:
    """A thing that carries the mark by which transformers knows a sharded model, if it still goes by that mark."""
    is_managed = importlib.import_module("transformers.distributed.fsdp").is_fsdp_managed_module
    marked = SimpleNamespace(_is_fsdp_managed_module=True)
    return marked if is_managed(marked) and not is_managed(SimpleNamespace()) else SimpleNamespace()


def loaded_tensor() -> Any:
    """A tensor that carries the mark by which transformers knows what was loaded, if it still goes by that mark."""
    marked: Any = torch.ones(1)
    marked._is_hf_initialized = True
    with importlib.import_module("transformers.initialization").guard_torch_init_functions():
        nn.init.zeros_(marked)
    return marked if marked.item() else SimpleNamespace()


def profiled() -> Any:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # read at the first profile, which may not be peak_memory's
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        torch.zeros(1)
    return profiler


def schedule() -> LambdaLR:
    return LambdaLR(SGD([torch.zeros(1)]), lambda _: 1.0)


SAMPLES: dict[str, Callable[[], Any]] = {
    "Tensor": lambda: torch.zeros(1),
    "Module": lambda: nn.Linear(1, 1),
    "Convolution": lambda: nn.Conv2d(1, 1, 1),
    "EncoderLayer": lambda: nn.TransformerEncoderLayer(2, 2),
    "Encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(2, 2, batch_first=True), 1),
    "Operator": lambda: torch.ops.aten.mm.default,
    "Profile": profiled,
    "PreTrainedModel": lambda: PreTrainedModel,
    "PreTrainedConfig": PreTrainedConfig,
    "OwnModel": own_model,
    "Experts": experts,
    "QuantizedConfig": quantized_config,
    "ShardedModel": sharded_model,
    "Loaded": loaded_tensor,
    "Trainer": lambda: Trainer,
    "HfQuantizer": lambda: HfQuantizer,
    "Tracker": lambda: SimpleNamespace(
        **dict.fromkeys(
            part for part in ("_scheduler", "_hardware") if f"self.{part} = " in source(OfflineEmissionsTracker)
        )
    ),
    "Prepared": lambda: SimpleNamespace(
        **dict.fromkeys(
            part
            for part in ("_is_accelerate_prepared", "_original_forward")
            if f"model.{part} = " in inspect.getsource(Accelerator.prepare_model)
        )
    ),
    "Processor": lambda: CPU(".", "constant", "any", 1),
}
"""What has the names that no import leads to."""
BASES = {
    "nn.Module": nn.Module(), "Dataset": Dataset, "torch.autograd.Function": torch.autograd.Function,
    "TorchDispatchMode": TorchDispatchMode, "PreTrainedModel": PreTrainedModel, "PreTrainedConfig": PreTrainedConfig(),
    "GenerationMixin": GenerationMixin, "Trainer": Trainer, "TrainerCallback": TrainerCallback,
    "HfQuantizer": HfQuantizer, "CacheLayerMixin": CacheLayerMixin, "DynamicLayer": DynamicLayer,
    "GradientCheckpointingLayer": GradientCheckpointingLayer, "QuantizationConfigMixin": QuantizationConfigMixin,
}  # fmt: skip
"""The classes of libraries that ours inherit from, as our files call them."""


def source(kind: type) -> str:
    return "".join(inspect.getsource(base) for base in kind.__mro__[:-1])


def there(name: str) -> bool:
    """Whether a library still has a name."""
    first, *path = name.split(".")
    if name == "create_block_mask(_compile)":
        return "_compile" in inspect.signature(create_block_mask).parameters
    try:
        place = SAMPLES[first]() if first in SAMPLES else importlib.import_module(first)
    except (AttributeError, ImportError):  # of what the sample is made with
        return False
    for at, part in enumerate(path):
        if first not in SAMPLES and not hasattr(place, part):
            try:
                importlib.import_module(".".join([first, *path[: at + 1]]))
            except ModuleNotFoundError:
                return False
        if not hasattr(place, part):
            return False
        place = getattr(place, part)
    return True


@pytest.mark.parametrize("name", [*TORCH, *TRANSFORMERS, *CODECARBON, *ACCELERATE])
def test_a_name_behind_a_wall_is_there(name: str) -> None:
    walls = (
        (TORCH, "_torch.py"), (TRANSFORMERS, "model/_transformers.py"), (CODECARBON, "measure/_codecarbon.py"),
        (ACCELERATE, "train/_accelerate.py"),
    )  # fmt: skip
    breaks, wall = next((names[name], wall) for names, wall in walls if name in names)
    assert there(name), f"{name} is gone. In greenformers/{wall} this breaks {breaks}"


@pytest.mark.parametrize("name", OVERRIDES)
def test_what_a_subclass_defines_is_still_asked_for(name: str) -> None:
    assert there(name), f"nothing asks for {name} any more: {OVERRIDES[name]}"


@pytest.mark.parametrize("name", SPELLED_PUBLIC)
def test_an_undocumented_name_is_there(name: str) -> None:
    assert there(name), f"{name} is gone. This breaks {SPELLED_PUBLIC[name]}"


def test_a_canary_dies_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_int_mm")
    assert not there("torch._int_mm")
    assert not there("torch.ops.quantized.no_such_operator")
    assert not there("torch._no_such_module.name")
    assert not there("Tensor._no_such_name")
    assert there("torch._dynamo.exc.TorchDynamoException")


# The finder.


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.strip("_") != ""


def named(attribute: str) -> bool:
    """Whether an attribute is private, or stands for something that is."""
    return private(attribute) or attribute in INTERNAL_ATTRIBUTES


@dataclass(frozen=True)
class Found:
    """What is looked at in a file, whose tree is large and let go."""

    uses: list[tuple[int, str]]
    own: list[tuple[str, str, str]]
    """Attributes of self and the like: the class that they stand in, if any, the whole text, and the name."""
    defined: set[str]
    classes: list[tuple[str, set[str], set[str]]]
    """Each class with its bases and with what it defines."""


def contents_of(source: str) -> Found:
    file = Found([], [], set(), [])
    for top, nodes in parts(ast.parse(source)):
        kind = top.name if isinstance(top, ast.ClassDef) else ""
        file.uses.extend(uses(nodes))
        file.own.extend((kind, ast.unparse(node), node.attr) for node in attributes_of_its_own(nodes))
        file.defined.update(name for name in defined(nodes) if named(name))
        if isinstance(top, ast.ClassDef):
            bases = {ast.unparse(base).partition("[")[0] for base in top.bases}
            file.classes.append((kind, bases, {name for name in defined_by(top, nodes) if named(name)}))
    return file


@cache
def found_in(path: Path) -> Found:
    return contents_of(path.read_text())


def parts(tree: ast.Module) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """The file and each class in it, with all nodes but those of the classes inside, and but operators and the like."""
    tops: list[ast.AST] = [tree]
    for top in tops:
        nodes = [top]
        for node in nodes:
            for field in node._fields:
                value = getattr(node, field)
                for child in value if isinstance(value, list) else (value,):
                    if isinstance(child, ast.ClassDef):
                        tops.append(child)
                    elif isinstance(child, ast.AST) and child._fields:
                        nodes.append(child)
        yield top, nodes


def defined(nodes: list[ast.AST]) -> Iterator[str]:
    """Names that a file gives to things of its own."""
    for node in nodes:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                yield node.id
        elif isinstance(node, ast.Attribute):
            if isinstance(node.ctx, ast.Store) and of_its_own(node):
                yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def attributes_of_its_own(nodes: list[ast.AST]) -> Iterator[ast.Attribute]:
    """Those that `uses` has, too."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and named(node.attr) and of_its_own(node):
            yield node


def of_its_own(node: ast.Attribute) -> bool:
    """Whether an attribute is of self, of the class, or of what that inherits."""
    value = node.value
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super" and not value.args
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def defined_by(kind: ast.ClassDef, nodes: list[ast.AST]) -> Iterator[str]:
    """What a class defines."""
    for item in kind.body:
        if isinstance(item, ast.FunctionDef):
            yield item.name
        targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))
    yield from (node.attr for node in attributes_of_its_own(nodes) if isinstance(node.ctx, ast.Store))


@cache
def ours() -> frozenset[str]:
    return frozenset(name for path in PACKAGE.rglob("*.py") for name in found_in(path).defined)


def names_of(kinds: Iterable[Any]) -> set[str]:
    return {name for kind in kinds for name in dir(kind) if named(name)}


@cache
def theirs() -> frozenset[str]:
    """Private names of the classes of libraries that ours inherit from or hold, and those behind the walls."""
    held = (
        Tensor, nn.TransformerEncoderLayer, nn.MultiheadAttention, nn.Linear(1, 1), nn.Conv2d(1, 1, 1), schedule(),
        own_model(), own_model().config,
    )  # fmt: skip
    behind = {part for _, name in walled() for part in name.split(".") if private(part)}
    return frozenset(names_of(held) | names_of(BASES.values()) | behind)


@cache
def bases_of_ours() -> dict[str, set[str]]:
    """The bases of each class of ours, by name."""
    bases: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for kind, own, _ in found_in(path).classes:
            bases.setdefault(kind, set()).update(own)
    return bases


@cache
def inherited(kind: str) -> frozenset[str]:
    """Private names that a class of ours has from libraries."""
    if kind in BASES:
        return frozenset(names_of([BASES[kind]]))
    bases = bases_of_ours().get(kind, set()) - {kind}
    return frozenset(name for base in bases for name in inherited(base))


def uses(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and name of all that may be private to a library: imports, attributes, keywords and texts that are names."""
    for node in nodes:
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            modules = [node.value] if node.value.replace(".", "a").isidentifier() else []
            if modules and private(node.value):
                yield node.lineno, node.value
        elif isinstance(node, ast.Attribute) and named(node.attr):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.keyword) and private(node.arg or ""):
            yield node.value.lineno, str(node.arg)
        for module in modules:
            internal = any(f"{module}.".startswith(f"{name}.") for name in INTERNAL)
            if module.split(".")[0] in LIBRARIES and (internal or any(map(private, module.split(".")))):
                yield getattr(node, "lineno", 0), module


def walled() -> Iterator[tuple[Path, str]]:
    for path in WALLS:
        yield from ((path, name) for _, name in found_in(path).uses)


def reaches(file: Found) -> list[str]:
    """What a file takes from behind a wall, as "line: name"."""
    overrides = {name.split(".")[1] for name in OVERRIDES}
    let_through = {
        text
        for kind, text, name in file.own
        if name in overrides or name not in (inherited(kind) if kind else theirs())
    }
    reached = []
    for line, name in file.uses:
        last = name.rpartition(".")[2]
        library = name.split(".")[0] in LIBRARIES or last in INTERNAL_ATTRIBUTES or last in theirs()
        # A text is a name only where a library has it; an attribute is a library's wherever it is not ours.
        unknown = "." in name and last not in ours() and last not in NAMED_TUPLE
        if unknown or (library and name not in let_through):
            reached.append(f"{line}: {name}")
    return reached


def test_nobody_reaches_over_a_wall() -> None:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path not in WALLS]
    assert len(paths) > 200
    over = {str(path.relative_to(PACKAGE)): names for path in paths if (names := reaches(found_in(path)))}
    assert over == {}


def test_our_subclasses_define_what_is_listed_and_nothing_else_of_a_library() -> None:
    """Of the names of a library's class."""
    classes = (each for path in PACKAGE.rglob("*.py") for each in found_in(path).classes)
    names = {name for kind, _, own in classes for name in own & inherited(kind)}
    assert names == {name.split(".")[1] for name in OVERRIDES}


def test_every_name_behind_a_wall_has_a_canary() -> None:
    canaries = {
        part.rstrip(")")
        for name in (*TORCH, *TRANSFORMERS, *CODECARBON, *ACCELERATE)
        for part in name.replace("(", ".").split(".")
    }
    assert [(path.name, name) for path, name in walled() if name.rpartition(".")[2] not in canaries] == []


@pytest.mark.parametrize(
    "code",
    [
        "from torch._subclasses.fake_tensor import FakeTensor",
        "import torch._dynamo",
        "from torch import _softmax_backward_data",
        "torch._int_mm(a, b)",
        "torch.ops.quantized.linear_dynamic(x, w)",
        "ops = torch.ops\nops.quantized",
        "aten._softmax",
        "from transformers.masking_utils import sdpa_mask",
        "import transformers.masking_utils",
        "from transformers import masking_utils",
        "from transformers.integrations.sdpa_attention import repeat_kv",
        "from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING",
        "from codecarbon.input import DataSource",
        "model._tied_weights_keys",
        "model._tied_weights_keys = {}",
        "getattr(model, '_tied_weights_keys')",
        "'_is_quantized' in vars(config)",
        "model._init_weights(part)",
        "self._buffers",
        "self._parameters['E']",
        "tensor._version",
        "logging.getLogger('torch.onnx._internal')",
        "importlib.import_module('transformers.masking_utils')",
        "create_block_mask(sees, _compile=True)",
        "tracker._hardware",
        "profiler.kineto_results",
    ],
)
def test_a_reach_over_a_wall_is_found(code: str) -> None:
    assert len(reaches(contents_of(code))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "from transformers.quantizers.auto import register_quantizer",
        "from greenformers.attention._contract import Attention",
        "super()._init_weights(module)",
        "class GreenformerModel:\n    def _init_weights(self): super()._init_weights(self)",
        "class Pace:\n    def f(self): return self._save",
        "self._tracker",
        "point._replace(x=1)",
        "x = '_no_name_of_theirs'",
        "torch.ops.aten.mm",
        '"""Uses torch._int_mm."""',
    ],
)
def test_what_is_ours_or_public_is_let_through(code: str) -> None:
    assert reaches(contents_of(code)) == []
