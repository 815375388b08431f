"""Other tokens in the place of some, so that few texts become many: TinyBERT, Jiao 2020, arXiv:1909.10351, algorithm 1.

Each token of a batch, but for the first and the last of a text, is replaced with a probability p. A masked language
model as teacher says by which: one of the `CANDIDATES` that it finds likeliest there, with the token masked. Of other
teachers it is one of the tokens nearest to it, by the cosine of their embeddings, in place of the paper's GloVe.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from greenformers.data._tasks import task_of

CANDIDATES, ROWS = 15, 512
"""Tokens among which one is drawn, evenly; rows of embeddings that are compared at once."""


class Replacement:
    """Replaces tokens of batches, drawn by torch's random numbers.

    Args:
        teacher: The teacher.
        share: Probability p.
        mask_token: Token that stands for a masked one; None where there is none.
    """

    def __init__(self, teacher: PreTrainedModel, share: float, mask_token: int | None) -> None:
        self.teacher, self.share = teacher, share
        self.mask_token = mask_token if task_of(teacher) == "masked_lm" else None
        self._near: dict[int, Tensor] = {}

    @torch.no_grad()
    def __call__(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A batch with some of its `input_ids` replaced."""
        ids = batch["input_ids"]
        mask = batch.get("attention_mask", torch.ones_like(ids)).bool()
        inner = mask & mask.roll(1, 1) & mask.roll(-1, 1)
        inner[:, [0, -1]] = False
        chosen = inner & (torch.rand(ids.shape) < self.share).to(ids.device)
        at = torch.randint(CANDIDATES, (int(chosen.sum()),)).to(ids.device)
        if not len(at):
            return dict(batch)
        mask_token = self.mask_token
        candidates = self._near_ones(ids[chosen]) if mask_token is None else self._likely(batch, chosen, mask_token)
        return {**batch, "input_ids": ids.masked_scatter(chosen, candidates.gather(1, at[:, None]).to(ids))}

    def _likely(self, batch: Mapping[str, Tensor], chosen: Tensor, mask_token: int) -> Tensor:
        masked = batch["input_ids"].masked_fill(chosen, mask_token)
        logits = self.teacher(**{**batch, "input_ids": masked}).logits[chosen]
        return logits.topk(CANDIDATES).indices

    def _near_ones(self, tokens: Tensor) -> Tensor:
        unknown = torch.tensor([token for token in set(tokens.tolist()) if token not in self._near], dtype=torch.long)
        table: Any = self.teacher.get_input_embeddings()
        weight = table.weight.detach()
        for part in unknown.split(ROWS):
            cosines = F.normalize(weight[part.to(weight.device)].float(), dim=1) @ F.normalize(weight.float(), dim=1).T
            cosines[torch.arange(len(part)), part.to(cosines.device)] = -2.0  # not itself
            near = cosines.topk(CANDIDATES).indices.to(torch.int32).cpu()
            self._near |= dict(zip(part.tolist(), near, strict=True))
        return torch.stack([self._near[token] for token in tokens.tolist()]).long().to(tokens.device)
