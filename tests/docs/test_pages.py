"""The pages stay true: their Python runs, their commands and options exist, and what they link to is there.

A Python block shares its names with those above it on its page. What it takes from the reader stands in a comment above
it, `<!-- given: model, texts -->`, and is made here, small; a block that cannot run has `<!-- not run: why -->`.
Notebooks run when the site is built (`make docs`).
"""

import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

from greenformers.cli import application

ROOT = Path(__file__).parents[2]
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if not {"_build", "made"} & set(path.parts)]
PYTHON = re.compile(r"(?:^<!-- (given|not run): ([^>]*?) -->\n+)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
WIDE = re.compile(r"(?:Bert|Roberta)Config\((?!.*hidden_size)")
NARROW = "hidden_size=256, num_attention_heads=4, intermediate_size=1024, "


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Of each Python block its mark ("given", "not run" or nothing), what that says, and the code."""
    return PYTHON.findall(page.read_text())


# What the blocks are given.


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(30))]
    plain = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=plain, mask_token="[MASK]", model_max_length=16, **special)


def model() -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    return BertModel(BertConfig(vocab_size=35, max_position_embeddings=20, **sizes)).eval()


def texts() -> list[str]:
    return [" ".join(f"w{(3 * row + at) % 30}" for at in range(2 + row % 9)) for row in range(120)]


def image_model() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    return ViTForImageClassification(ViTConfig(image_size=32, patch_size=16, num_labels=3, **sizes)).eval()


def images() -> list[torch.Tensor]:
    return list(torch.rand(120, 3, 32, 32, generator=torch.Generator().manual_seed(0)))


def processor() -> Any:
    from transformers import ViTImageProcessorPil

    return ViTImageProcessorPil(size={"height": 32, "width": 32})


def sentence_folder() -> Path:
    """A folder of sentence-transformers, `folder`, and a changed one, `sentences`."""
    from sentence_transformers import SentenceTransformer

    import greenformers

    model().save_pretrained("plain_bert")
    tokenizer().save_pretrained("plain_bert")
    encoder = SentenceTransformer("plain_bert", device="cpu")
    encoder.save("folder")
    greenformers.compress(encoder, 0.5)
    greenformers.save(encoder, "sentences")
    return Path("folder")


class Network(torch.nn.Module):
    """A network that is not of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


GIVEN: dict[str, Callable[[], Any]] = {
    "model": model, "tokenizer": tokenizer, "texts": texts, "images": images, "image_model": image_model,
    "processor": processor, "sentence_folder": sentence_folder, "Network": lambda: Network, "network": Network,
    "batches": lambda: list(torch.rand(4, 8, 32)),
}  # fmt: skip


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for mark, said, code in blocks(page):
        if mark == "not run":
            assert len(said) > 10, f"{page.name}: a block that is not run says why"
            continue
        for name in re.split(r",\s*", said) if mark else ():
            space[name.removesuffix(" as model")] = GIVEN[name.removesuffix(" as model")]()
        if "image_model" in said:
            space["model"] = space.pop("image_model")
        # Networks are made narrower than they are by default: the width plays no part.
        exec(compile(WIDE.sub(rf"\g<0>{NARROW}", code), str(page), "exec"), space)


# Commands.


def lines_of(page: Path) -> Iterator[list[str]]:
    """The words of each call of the command line, in blocks and in the text."""
    text = page.read_text()
    for block in SHELL.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "greenformers" in words[:1]:
                yield words[1:]
            elif "-m" in words and words[words.index("-m") + 1] == "greenformers":
                yield words[words.index("-m") + 2 :]
    for call in re.findall(r"`(greenformers [a-z][^`]*)`", text):
        yield shlex.split(call.replace("\n", " "))[1:]


@cache
def whole() -> Any:
    """The command line, which takes long to build."""
    return get_command(application())


def wrong(words: list[str]) -> str | None:
    """What the command line does not know of a call: a command, or an option."""
    command = whole()
    while hasattr(command, "commands"):
        if not words:
            return None
        if words[0] not in command.commands:
            return f"no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in {*options, "--help"}]
    return f"no option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    upper = re.compile(r"^[A-Z_]+$")  # COMMAND stands for any
    calls = [words for words in lines_of(page) if not (words and upper.match(words[0]))]
    assert [(" ".join(words), said) for words in calls if (said := wrong(words))] == []


def test_what_is_wrong_is_found() -> None:
    assert wrong(["compress", "MODEL", "--keep", "0.5"]) is None
    assert wrong(["compress", "MODEL", "--kept", "0.5"]) == "no option --kept"
    assert wrong(["genome", "simulates"]) == "no command simulates"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_asks_an_index_for_our_name(page: Path) -> None:
    assert re.findall(r"pip install (?:--?\w+ )*['\"]?greenformers(?!-)", page.read_text()) == []


def test_make_has_the_targets_that_pages_name() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target for page in PAGES for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert named <= targets


def test_no_page_has_the_name_of_one_that_the_site_makes() -> None:
    """Sphinx writes its page to search for words, and its indices, over ours."""
    assert {page.stem for page in PAGES if page.parent.name == "docs"}.isdisjoint({"search", "genindex", "py-modindex"})
