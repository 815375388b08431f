"""The folder of a static encoder: a SentenceTransformer whose one module is a `StaticEmbedding`.

It is written and read without sentence-transformers: the vectors in safetensors, the tokenizer as the tokenizers
library writes it, and the list of modules.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from greenformers._tensors import save_file
from greenformers.checkpoint.save import MARK, building
from greenformers.checkpoint.sentence import MODULES, SETTINGS, listed

WEIGHTS, KEY, TOKENIZER, CARD = "model.safetensors", "embedding.weight", "tokenizer.json", "README.md"
TYPE = "sentence_transformers.models.StaticEmbedding"

LOADING = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("this folder", device="cpu")
vectors = model.encode(["A man is playing a guitar.", "Someone plays music."])
print(model.similarity(vectors, vectors))"""


@dataclass(frozen=True)
class StaticEncoder:
    """A vector for each token; that of a text is the mean.

    Attributes:
        weight: The vectors (V, d').
        tokenizer: A tokenizer of the tokenizers library, without special tokens, padding or truncation.
    """

    weight: Tensor
    tokenizer: Tokenizer

    @classmethod
    def of(cls, weight: Tensor, tokenizer: PreTrainedTokenizerFast) -> "StaticEncoder":
        """The encoder of vectors and of a tokenizer of transformers, which stays as it is."""
        own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        own.no_padding()
        own.no_truncation()
        return cls(weight, own)

    def tokens(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Tokens of all texts, one after the other, and the place of the first one of each."""
        ids = [encoded.ids for encoded in self.tokenizer.encode_batch(texts, add_special_tokens=False)]
        counts = torch.tensor([len(text) for text in ids], dtype=torch.long)
        return torch.tensor([token for text in ids for token in text], dtype=torch.long), counts.cumsum(0) - counts

    def vectors(self, ids: Tensor, starts: Tensor) -> Tensor:
        """The mean vectors (B, d') of texts as `tokens` gives them; 0 for a text without tokens."""
        return F.embedding_bag(ids, self.weight, starts, mode="mean")

    def encode(self, texts: list[str]) -> Tensor:
        """The vectors of texts (B, d')."""
        return self.vectors(*self.tokens(texts))

    def save(self, folder: str | Path, card: str = "") -> Path:
        """Write the folder, read it again and compare; an earlier one is replaced once all is written.

        Raises:
            ValueError: What was read again is something else, or vectors are not finite.
            FileExistsError: The folder holds something else.
        """
        folder = Path(folder)
        if not bool(self.weight.isfinite().all()):
            raise ValueError("the static encoder was not saved: its vectors are not finite")
        with building(folder) as unfinished:
            save_file({KEY: self.weight.contiguous()}, unfinished / WEIGHTS)
            self.tokenizer.save(str(unfinished / TOKENIZER))
            modules = [{"idx": 0, "name": "0", "path": "", "type": TYPE}]
            (unfinished / MODULES).write_text(json.dumps(modules, indent=1) + "\n")
            (unfinished / SETTINGS).write_text(json.dumps({"similarity_fn_name": "cosine"}, indent=1) + "\n")
            head = f"---\n{MARK}\n---\n\n# A static sentence encoder\n\n```python\n{LOADING}\n```\n"
            (unfinished / CARD).write_text(f"{head}\n{card}\n" if card else head)
            again = StaticEncoder.read(unfinished)
            texts = ["a text", "another, longer text", ""]
            if not torch.equal(again.encode(texts), self.encode(texts)) or not torch.equal(again.weight, self.weight):
                raise ValueError("the static encoder was not saved: it is another one when it is read again")
        return folder

    @classmethod
    def read(cls, folder: Path) -> "StaticEncoder":
        """Read such a folder.

        Raises:
            ValueError: It holds something else, or files are damaged.
            OSError: A file is missing.
        """
        kinds = [module["type"].rpartition(".")[2] for module in listed(folder)]
        if kinds != ["StaticEmbedding"]:
            raise ValueError(f"{folder} holds no static encoder: its modules are {', '.join(kinds)}")
        tensors = load_file(folder / WEIGHTS)
        if list(tensors) != [KEY] or tensors[KEY].dim() != 2:
            raise ValueError(f"{folder / WEIGHTS} holds other tensors than {KEY} (tokens, dimensions)")
        return cls(tensors[KEY], Tokenizer.from_file(str(folder / TOKENIZER)))
