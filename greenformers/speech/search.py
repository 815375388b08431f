"""Beam search. Thesis eq. 4.1: hypotheses are ranked by alpha log P(Y | X) + gamma sqrt(words of Y).

All beams of a batch are one batch of the decoder, which reads a character a step and keeps the keys and values of
those before. Beams of one utterance share its encoder output. Utterances that are done leave the batch.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

from greenformers.model.beams import BeamLayer, Beams
from greenformers.speech.front_end import shortened
from greenformers.speech.model import GreenformerForSpeechSeq2Seq
from greenformers.speech.search_options import Search


@dataclass(frozen=True)
class Hypothesis:
    """A transcript.

    Attributes:
        tokens: its characters, without marks.
        score: what it is ranked by.
        log_probability: log P(Y | X) in nats, the end counted.
    """

    tokens: tuple[int, ...]
    score: float
    log_probability: float


def beam_search(
    model: GreenformerForSpeechSeq2Seq,
    input_features: Float[Tensor, "B T F"],
    attention_mask: Bool[Tensor, "B T"] | None = None,
    *,
    space: int | None = None,
    search: Search | None = None,
) -> list[list[Hypothesis]]:
    """Transcripts of each utterance, the best first, up to the beam's width.

    Args:
        model: in evaluation mode.
        input_features: spectrograms (B, T, F).
        attention_mask: True = keep (B, T).
        space: the token between words; None where the writing has none, and every character counts as a word.
        search: how.
    """
    with torch.inference_mode():
        memory = model.encoder(input_features, attention_mask, return_dict=True).last_hidden_state
    mask = None if attention_mask is None else shortened(attention_mask)
    return written(model, memory, mask, space=space, search=search)


@torch.inference_mode()
def written(
    model: GreenformerForSpeechSeq2Seq,
    memory: Float[Tensor, "B t d"],
    mask: Bool[Tensor, "B t"] | None = None,
    *,
    space: int | None = None,
    search: Search | None = None,
) -> list[list[Hypothesis]]:
    """Transcripts of what the encoder made of each utterance (B, t, d); arguments else as in `beam_search`."""
    beams = _Beams(model, memory, mask, space, search or Search())
    while beams.alive:
        beams.advance()
    return [sorted(found, key=lambda one: -one.score)[: beams.search.width] for found in beams.ended]


class _Beams:
    """The hypotheses of a batch, W of each utterance that is not done."""

    def __init__(
        self,
        model: GreenformerForSpeechSeq2Seq,
        memory: Tensor,
        mask: Tensor | None,
        space: int | None,
        search: Search,
    ) -> None:
        batch, positions = memory.shape[:2]
        self.model, self.memory, self.mask, self.search, self.space = model, memory, mask, search, space
        self.end = cast(int, model.config.eos_token_id)
        room = model.config.max_position_embeddings - 1
        most = positions if mask is None else mask.sum(1)
        self.longest = torch.full((batch,), 0, device=memory.device) + most
        if search.longest is not None:
            self.longest.fill_(search.longest)
        self.longest.clamp_(max=room)
        self.ended: list[list[Hypothesis]] = [[] for _ in range(batch)]
        self.who = list(range(batch))
        start = cast(int, model.config.decoder_start_token_id)
        self.tokens = torch.full((batch, search.width, 1), start, device=memory.device)
        # At the start all beams are the same one.
        self.log_p = torch.full((batch, search.width), -torch.inf, device=memory.device, dtype=torch.float32)
        self.log_p[:, 0] = 0
        self.words = torch.zeros_like(self.log_p)
        self.between = torch.ones_like(self.log_p, dtype=torch.bool)  # the next character begins a word
        self.history = Beams(batch, search.width, memory.device)
        self.cache = EncoderDecoderCache(self._layers(), DynamicCache()) if search.cached else None

    def _layers(self) -> DynamicCache:
        """Of the decoder's own attention: where a mask is enough nothing is moved, elsewhere each beam has a row."""
        cache = DynamicCache()
        for layer in cast(Any, self.model.decoder.layers):
            masks = layer.attention.mechanism.only_masks
            cache.layers.append(BeamLayer(self.history) if masks else DynamicLayer())
        return cache

    @property
    def alive(self) -> bool:
        return bool(self.who)

    def advance(self) -> None:
        """One character more."""
        search, step = self.search, self.tokens.shape[2] - 1
        total = self._next() + self.log_p[..., None]  # (B, W, V)
        last = step >= self.longest
        if step < search.shortest:
            total[~last, :, self.end] = -torch.inf
        if bool(last.any()):
            ends = total[last][..., self.end].clone()
            total[last] = -torch.inf
            total[last, :, self.end] = ends
        words = self._words(total.shape[2])
        score = search.alpha * total + search.gamma * words.sqrt()
        # Twice as many as go on: at most half of them can end.
        best, at = score.flatten(1).topk(min(2 * search.width, score[0].numel()), 1)
        beam, token = at // total.shape[2], at % total.shape[2]
        ends = token == self.end
        self._end(best, total.flatten(1).gather(1, at), beam, ends)
        # Stable: those that go on stay in order.
        order = ends.int().argsort(dim=1, stable=True)[:, : search.width]
        self._go_on(beam.gather(1, order), token.gather(1, order), total, words, best.gather(1, order))
        self._leave(last)

    def _next(self) -> Tensor:
        """Log P of the next character, of those that can be written and the end (B, W, V)."""
        rows = self.tokens.flatten(0, 1)
        self.history.step()
        out = self.model.decoder(
            rows if self.cache is None else rows[:, -1:],
            None,
            self.memory,
            self.mask,
            past_key_values=self.cache,
            use_cache=self.cache is not None,
            return_dict=True,
        )
        logits = self.model.score(self.model.narrow(out.last_hidden_state[:, -1])).float()
        config = self.model.config
        found = logits.log_softmax(1).unflatten(0, self.log_p.shape)
        for mark in {config.pad_token_id, config.decoder_start_token_id, config.bos_token_id} - {None, self.end}:
            found[..., mark] = -torch.inf
        return found

    def _words(self, vocabulary: int) -> Tensor:
        """Words with each character added (B, W, V)."""
        more = self.words.new_ones(vocabulary)
        more[self.end] = 0
        if self.space is None:
            return self.words[..., None] + more
        more[self.space] = 0
        return self.words[..., None] + more * self.between[..., None]

    def _end(self, best: Tensor, log_p: Tensor, beam: Tensor, ends: Tensor) -> None:
        """Keep the hypotheses that end, of the first W of each utterance."""
        found = ends[:, : self.search.width] & (best[:, : self.search.width] > -torch.inf)
        for row, place in found.nonzero().tolist():
            tokens = tuple(self.tokens[row, beam[row, place], 1:].tolist())
            one = Hypothesis(tokens, best[row, place].item(), log_p[row, place].item())
            self.ended[self.who[row]].append(one)

    def _go_on(self, beam: Tensor, token: Tensor, total: Tensor, words: Tensor, best: Tensor) -> None:
        """Make the chosen characters part of the hypotheses."""
        chosen = beam * total.shape[2] + token
        self.log_p, self.words = (x.flatten(1).gather(1, chosen) for x in (total, words))
        # An end that is carried along where too few go on is no hypothesis.
        self.log_p.masked_fill_((token == self.end) | (best == -torch.inf), -torch.inf)
        self.between = token == self.space if self.space is not None else self.between
        self.tokens = torch.cat([self.tokens.gather(1, beam[..., None].expand_as(self.tokens)), token[..., None]], 2)
        if self.cache is not None:
            # The keys and values of the encoder's output are the same for all beams.
            self.history.follow(beam)
            first = torch.arange(len(beam), device=beam.device)[:, None] * self.search.width
            for layer in self._moved():
                layer.reorder_cache((first + beam).flatten())

    def _moved(self) -> list[Any]:
        """Layers of the cache that have a row for each beam."""
        layers = cast(EncoderDecoderCache, self.cache).self_attention_cache.layers
        return [layer for layer in layers if not isinstance(layer, BeamLayer)]

    def _leave(self, last: Tensor) -> None:
        """Take utterances that are done out of the batch."""
        search = self.search
        left = (self.longest - self.tokens.shape[2] + 1).clamp(min=0)
        left = left if self.space is None else (left + 1) // 2
        bound = (search.alpha * self.log_p + search.gamma * (self.words + left[:, None]).sqrt()).amax(1).tolist()
        stays = []
        for row, who in enumerate(self.who):
            found = self.ended[who]
            # log P only falls: what is left cannot become better than what has ended.
            beaten = bool(found) and max(one.score for one in found) >= bound[row]
            if not (beaten or len(found) >= search.width or bool(last[row]) or bound[row] == -float("inf")):
                stays.append(row)
        if len(stays) == len(self.who):
            return
        before, self.who = len(self.who), [self.who[row] for row in stays]
        kept = torch.tensor(stays, device=self.log_p.device, dtype=torch.long)
        for name in ("tokens", "log_p", "words", "between", "longest", "memory", "mask"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value[kept])
        if self.cache is not None:
            self.history.keep(kept)
            for layer in cast(Any, self.cache.self_attention_cache.layers):
                layer.batch_select_indices(kept if isinstance(layer, BeamLayer) else _rows(kept, search.width))
            for layer in cast(Any, self.cache.cross_attention_cache.layers):
                # One for all beams, or one for each.
                layer.batch_select_indices(_rows(kept, layer.keys.shape[0] // before))


def _rows(kept: Tensor, each: int) -> Tensor:
    """Rows of the utterances that are kept, where each has so many."""
    return (kept[:, None] * each + torch.arange(each, device=kept.device)).flatten()
