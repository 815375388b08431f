import json
from pathlib import Path

import pytest
from fixtures import interruptible, one_thread, operators_once, quiet, seed, verbosity
from models import folder, labelled, pairs, sentences, tokenizer
from safetensors.torch import load_file, save_file
from zoo import network

from greenformers.compress import answers

__all__ = ["interruptible", "one_thread", "operators_once", "quiet", "seed", "verbosity"]


@pytest.fixture(autouse=True)
def swift(monkeypatch: pytest.MonkeyPatch, drafts: None) -> None:  # noqa: ARG001
    """Little is measured, and pages have no pictures, or drafts: no test of this folder looks at one."""
    monkeypatch.setattr(answers, "RESAMPLES", 50)
    monkeypatch.setattr("greenformers.report.page.pictures", lambda _: [])


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and texts, that no command changes; some of no use."""
    root = tmp_path_factory.mktemp("home")
    for name, cls in [
        ("bert", "BertModel"), ("bert", "BertForSequenceClassification"), ("bert", "BertForMaskedLM"),
        ("gpt2", "GPT2LMHeadModel"),
    ]:  # fmt: skip
        folder(root, name, cls)
    network("vit").save_pretrained(root / "vit")
    network("t5").save_pretrained(root / "t5")
    (root / "texts.txt").write_text("\n".join(sentences(60)) + "\n\n")
    pairs(root / "pairs.tsv")
    labelled(root / "labelled.tsv")
    spoilt_texts(root)
    spoilt_models(root)
    return root


def spoilt_texts(root: Path) -> None:
    texts = {
        "empty.txt": "\n \n", "header.tsv": "sentence\tlabel\n", "wrong.tsv": "words\tclass\nbar\t1\n",
        "half.tsv": "sentence\tlabel\nbar\t0.5\n", "short.txt": "bar dos kit\n", "few.txt": "bar dor\n" * 7,
        "one.txt": "one text\n", "constant.tsv": "sentence1\tsentence2\tscore\n" + "bar\tdos\t3\n" * 4,
        "broken.toml": "[[change]\n", "none.toml": "change = []\n", "more.toml": 'name = "int8"\n',
        "wrong.toml": '[[change]]\nname = "int8"\n\n[[change]]\nname = "low_rank"\nkeep = "half"\n',
    }  # fmt: skip
    for name, text in texts.items():
        (root / name).write_text(text)


def spoilt_models(root: Path) -> None:
    def copied(name: str) -> Path:
        (root / name).mkdir()
        for part in ("config.json", "model.safetensors"):
            (root / name / part).write_bytes((root / "BertModel" / part).read_bytes())
        return root / name

    def described(name: str, **change: object) -> None:
        config = json.loads((copied(name) / "config.json").read_text())
        (root / name / "config.json").write_text(json.dumps(config | change))

    weights = copied("damaged") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    (copied("pickled") / "model.safetensors").rename(root / "pickled" / "pytorch_model.bin")
    described("misfit", hidden_size=48)
    described("custom", auto_map={"AutoModel": "x.Y"})
    described("unnamed", architectures=None)
    (copied("nonsense") / "tokenizer.json").write_text("{}")
    tokens = tokenizer("bert")
    tokens.add_tokens([f"more{number}" for number in range(60 - len(tokens))])
    tokens.save_pretrained(copied("foreign"))
    state = load_file(copied("lacking") / "model.safetensors")
    del state["pooler.dense.weight"]
    save_file(state, root / "lacking" / "model.safetensors", {"format": "pt"})
