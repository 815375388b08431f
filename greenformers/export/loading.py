"""Lines of Python by which runtimes load the folder of an export: they are run from within it."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from greenformers.data._tasks import task_of
from greenformers.export.network import IDS, MASK, TYPES, Network
from greenformers.export.write import CHECKPOINTS, FORMATS, PACKED

CONTINUED = 20
"""Tokens that the lines for language models write."""

STEPS = """new, mask = tokens["input_ids"], tokens["attention_mask"]
{before}
for _ in range({count}):
    {step}
    new = logits[:, -1:].argmax(-1)
    mask = np.concatenate([mask, np.ones_like(new)], axis=1)
    written.append(new)
output = np.concatenate(written, axis=1)"""


def loading(form: str, network: Network, tokenizer: PreTrainedTokenizerBase | None, *, cached: bool) -> str:
    """Lines of Python that load the file of a format and run it on texts; `output` is a tensor, an array, or a few.

    Args:
        form: Name of the format.
        network: The model that was exported.
        tokenizer: Its tokenizer, if it has one; else the lines have numbers in place of texts.
        cached: Whether the files of OpenVINO and ONNX Runtime keep a cache: the lines then write the likeliest tokens.
    """
    first = ["import greenformers"] if form == "torch" else []
    first += [f"import {library}" for library in _libraries(form, tokenizer, cached)]
    kind = type(network.model)
    home = "greenformers" if kind.__module__.startswith("greenformers.") else "transformers"
    first += ["from transformers import AutoTokenizer"] if tokenizer is not None else []
    first += [f"from {home} import {kind.__name__}"] if form in CHECKPOINTS else []
    tokens = _numbers(network.inputs) if tokenizer is None else _texts(tokenizer, network)
    rest = _of_decoder(form) if cached and form in DECODERS else _whole(form, network)
    return "\n".join([*first, "", f"tokens = {tokens}", rest])


def _libraries(form: str, tokenizer: PreTrainedTokenizerBase | None, cached: bool) -> list[str]:
    library = {"openvino": "openvino", "onnx": "onnxruntime"}.get(form, "torch")
    counts = tokenizer is None or (cached and form in DECODERS)
    return ["numpy as np", library] if counts else [library]


def _texts(tokenizer: PreTrainedTokenizerBase, network: Network) -> str:
    """Python for tokens of texts; those of a language model are padded on the left, so that they end together."""
    side = ', padding_side="left"' if network.generates else ""
    several = tokenizer.pad_token is not None
    texts, padding = ('["a text", "and another one"]', ", padding=True") if several else ('["a text"]', "")
    if task_of(network.model) == "answerer":
        texts, padding = '["a question"], ["a text that tells the answer"]', ""
    return f'AutoTokenizer.from_pretrained("."{side})({texts}{padding}, return_tensors="np")'


def _numbers(inputs: Sequence[str]) -> str:
    """Python for the tokens of a folder without a tokenizer."""
    values = {IDS: [[5, 6, 7]], MASK: [[1, 1, 1]], TYPES: [[0, 0, 0]]}
    return "{" + ", ".join(f'"{name}": np.array({values[name]})' for name in inputs) + "}"


def _whole(form: str, network: Network) -> str:
    names, kind = network.inputs, type(network.model).__name__
    in_torch = f"torch.from_numpy(tokens[name]) for name in {names}"
    run = f"output = model(**{{name: {in_torch}}})"
    run += f".{network.outputs[0]}" if len(network.outputs) == 1 else ".to_tuple()"
    several = "output" if len(network.outputs) > 1 else "(output,)"
    if network.generates:
        run = f"output = model.generate(**{{name: {in_torch}}}, max_new_tokens={CONTINUED})"
    return {
        "openvino": f'model = openvino.Core().compile_model("{FORMATS[form]}", "CPU")\n'
        f"{several} = model({{name: tokens[name] for name in {names}}}).to_tuple()",
        "onnx": f'session = onnxruntime.InferenceSession("{FORMATS[form]}")\n'
        f"{several} = session.run(None, {{name: tokens[name] for name in {names}}})",
        "torch": f'model = {kind}.from_pretrained(".")\n{run}',
        PACKED: "# needs compressed-tensors; greenformers.load reads it too, and keeps its weights packed\n"
        f'model = {kind}.from_pretrained("{PACKED}")\n{run}',
        "program": f'program = torch.export.load("{FORMATS[form]}").module()  # unpickles: only what you trust\n'
        f"output = program(*({in_torch}))",
    }[form]


DECODERS = {
    "openvino": (
        'request = openvino.Core().compile_model("{path}", "CPU").create_infer_request()\n'
        "rows, written = np.arange(len(new), dtype=np.int32), [new]  # reset_state() begins other texts",
        'logits = request.infer({"input_ids": new, "attention_mask": mask, "beam_idx": rows})[0]',
    ),
    "onnx": (
        'session = onnxruntime.InferenceSession("{path}")\n'
        "cache = {given.name: (len(new), given.shape[1], 0, given.shape[3]) for given in session.get_inputs()[2:]}\n"
        "cache, written = {name: np.zeros(shape, np.float32) for name, shape in cache.items()}, [new]",
        'logits, *present = session.run(None, {"input_ids": new, "attention_mask": mask, **cache})\n'
        "    cache = dict(zip(cache, present))",
    ),
}
"""Lines before the loop over tokens, and its first ones, of files with a cache."""


def _of_decoder(form: str) -> str:
    before, step = DECODERS[form]
    return STEPS.format(before=before.replace("{path}", FORMATS[form]), step=step, count=CONTINUED)


def loading_in_optimum(formats: Sequence[str]) -> str:
    """Lines for optimum, whose models are used as those of `transformers` are."""
    lines = []
    for form, library, name in (("openvino", "intel", "OV"), ("onnx", "onnxruntime", "ORT")):
        if form in formats:
            kind = f"{name}ModelForCausalLM"
            lines += [f"from optimum.{library} import {kind}", ""]
            lines += [f'model = {kind}.from_pretrained(".", subfolder="{form}")  # has generate()', ""]
    return "\n".join(lines[:-1])


def loading_in_genai(tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Lines for OpenVINO GenAI, which writes text from text."""
    folder, options = FORMATS["openvino"].rpartition("/")[0], f"max_new_tokens={CONTINUED}"
    lines = ["import openvino_genai  # of the extra genai", ""]
    lines += [f'pipeline = openvino_genai.LLMPipeline("{folder}", "CPU")']
    if getattr(tokenizer, "chat_template", None):
        lines += ["# By default the text would be put into the template of a chat."]
        options += ", apply_chat_template=False"
    return "\n".join([*lines, f'output = pipeline.generate("a text", {options})'])


def loading_of_sentences(formats: Sequence[str]) -> str:
    """Lines for sentence-transformers; none where it reads no format."""
    models = {
        "torch": 'SentenceTransformer(".")',
        PACKED: f'SentenceTransformer("{PACKED}")  # needs compressed-tensors',
        "openvino": 'SentenceTransformer(".", backend="openvino")  # needs optimum-intel',
        "onnx": 'SentenceTransformer(".", backend="onnx")  # needs optimum-onnx',
    }
    lines = [f"model = {model}" for form, model in models.items() if form in formats]
    if not lines:
        return ""
    first = ["import greenformers"] if "torch" in formats else []
    first += ["from sentence_transformers import SentenceTransformer", ""]
    return "\n".join([*first, *lines, 'embeddings = model.encode(["a text", "and another one"])'])
