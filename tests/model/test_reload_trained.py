"""What is trained comes back: every mechanism, block and head, saved and read by plain `AutoModel`s elsewhere.

Mechanisms with statistics of their own move them as the training does, and the fresh process must see what they moved.
"""

import pytest
import torch
from forked import told
from fresh import chosen
from safetensors.torch import save_file

import greenformers.model
from greenformers import blocks, feed_forward, position
from greenformers.attention import attention_class, names
from greenformers.model import GreenformerConfig
from greenformers.train.callbacks import Update

SIZES = {
    "vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 14,
    "max_position_embeddings": 16, "pad_token_id": 0,
}  # fmt: skip
IMAGES = {"vocab_size": None, "image_size": 6, "patch_size": 2, "num_channels": 3, "input_features": 12}
HEADS = {
    "MaskedLM": {}, "CausalLM": {}, "SequenceClassification": {"num_labels": 3},
    "TokenClassification": {"num_labels": 3}, "QuestionAnswering": {}, "MultipleChoice": {}, "PreTraining": {},
    "SentenceEmbedding": {}, "ImageClassification": IMAGES,
    "AudioClassification": {"vocab_size": None, "input_features": 5},
}  # fmt: skip
AUTO = {"Model": "AutoModel", "SentenceEmbedding": "AutoModelForTextEncoding"}
B, N = 3, 11

READ = """
import json, sys
import greenformers
import torch, transformers
from pathlib import Path
from safetensors.torch import load_file
torch.set_num_threads(1)
differences = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    model = getattr(transformers, (folder / "auto.txt").read_text()).from_pretrained(folder).eval()
    for parameter in model.parameters():  # by where in memory numbers begin, sums may be rounded
        parameter.data = parameter.data.clone()
    kept = load_file(folder / "expected.safetensors")
    with torch.no_grad():
        out = model(**{name: x for name, x in kept.items() if name != "out"})[0]
    differences[folder.name] = (out - kept["out"]).abs().max().item()
print(json.dumps(differences))
"""


def variants():
    for name in names():
        yield name, "Model", {"attention": name}
    for name in ("performer", "reformer", "routing"):
        options = {"clusters": 3} if name == "routing" else {"redraw": 2}
        yield f"{name} moved", "MaskedLM", {"attention": name, "attention_options": options}
    for name in blocks.names():
        slot = "block" if blocks.block_class(name).keeps_length else "pooling"
        yield name, "SequenceClassification", {slot: name}
    for name in feed_forward.names():
        yield f"feed-forward {name}", "Model", {"feed_forward": name}
    for name in position.names():
        yield f"position {name}", "Model", {"position": name}
    for head, options in HEADS.items():
        yield f"head {head}", head, options


VARIANTS = {name: (head, options) for name, head, options in variants()}


def drawn(head, *, masked=False):
    """A batch of what a head reads."""
    mask = torch.ones(B, N, dtype=torch.long)
    mask[1, 7:] = 0
    if head == "ImageClassification":
        return {"pixel_values": torch.randn(B, 3, 6, 6)}
    if head == "AudioClassification":
        given = {"input_values": torch.randn(B, N, 5)}
    elif head == "MultipleChoice":
        given, mask = {"input_ids": torch.randint(1, 31, (B, 2, N))}, mask[:, None].expand(B, 2, N)
    else:
        given = {"input_ids": torch.randint(1, 31, (B, N))}
    return given | ({"attention_mask": mask.contiguous()} if masked else {})


def trained(head, options):
    """After three steps."""
    torch.manual_seed(0)
    cls = (
        greenformers.model.GreenformerModel if head == "Model" else getattr(greenformers.model, f"GreenformerFor{head}")
    )
    model = cls(GreenformerConfig(**SIZES | options)).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        out = model(**drawn(head))
        loss = out[0].float().square().mean() + (getattr(out, "auxiliary_loss", None) or 0.0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        Update().on_step_end(None, None, None, model=model)
    return model.eval()


@pytest.fixture(scope="module")
def differences(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("trained")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for case in chosen(request, "test_a_fresh_process_reads_what_was_trained"):
        name, (head, options) = case["name"], VARIANTS[case["name"]]
        model, folder = trained(head, options), root / name
        model.save_pretrained(folder)
        given = drawn(head, masked=True)
        with torch.no_grad():
            out = model(**given)[0]
        save_file({**given, "out": out.contiguous()}, folder / "expected.safetensors")
        (folder / "auto.txt").write_text(AUTO.get(head, f"AutoModelFor{head}"))
    torch.set_num_threads(threads)
    return told(READ, root)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_fresh_process_reads_what_was_trained(differences, name):
    assert differences[name] == 0


def test_statistics_did_move():
    """Else the test above would say nothing of them."""
    head, options = VARIANTS["routing moved"]
    mechanism = trained(head, options).encoder.layers[0].attention.mechanism
    first = attention_class("routing")(mechanism.shape, clusters=3).centroids
    assert (mechanism.centroids - first).abs().max() > 1e-4


def test_buffers_are_made_where_they_are_empty():
    """A model that was made on the meta device, as transformers does, has the buffers that it is made with."""
    for name in names():
        config = GreenformerConfig(**SIZES, attention=name)
        model = greenformers.model.GreenformerModel(config)
        with torch.device("meta"):
            empty = greenformers.model.GreenformerModel(config)
        empty.to_empty(device="cpu").init_weights()
        expected = dict(model.named_buffers())
        for key, buffer in empty.named_buffers():
            assert torch.equal(buffer, expected[key]), (name, key)
