"""Beam search. Cahyawijaya 2021, eq. 4.1: hypotheses are ranked by alpha log P(Y | X) + gamma sqrt(words of Y).

With a share w of CTC, log P = (1 - w) log P_attention + w log P_ctc, where P_ctc of an open hypothesis is that of all
texts that begin with it. Watanabe 2017 (hybrid CTC/attention), algorithm 2.

Two options are against transcripts that end too early, as a shorter text is likelier: log P may be divided by a power
of the number of characters with the end, and the end may be admitted only where

    log P(end | Y) > threshold max_c log P(c | Y)

Hannun 2019, arXiv:1904.02619 (the threshold).

All beams of a batch are one batch of the decoder, which reads a character a step and keeps the keys and values of
the characters before. Beams of one utterance share its encoder output. Utterances that are done leave the batch.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

from greenformers.model.attention import SelfAttention
from greenformers.model.beams import BeamLayer, Beams
from greenformers.model.block import places_of
from greenformers.speech.front_end import shortened
from greenformers.speech.model import GreenformerForSpeechSeq2Seq
from greenformers.speech.prefixes import Prefixes
from greenformers.speech.search_options import Search


@dataclass(frozen=True)
class Hypothesis:
    """A transcript.

    Attributes:
        tokens: Tokens of its characters, without special tokens.
        score: Score by which it is ranked.
        log_probability: Log-probability log P(Y | X) in nats, with that of the end; the weighted sum of both where
            CTC has a share.
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
        model: The network, in evaluation mode.
        input_features: Spectrograms (B, T, F).
        attention_mask: Mask (B, T), True = keep.
        space: The token between words; None in a script without spaces, where every character counts as a word.
        search: Options of the search.

    Raises:
        ValueError: The search asks for a share of CTC, and the network was trained without.
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
    """Transcripts of each utterance from the encoder output `memory` (B, t, d); other arguments as in `beam_search`."""
    beams = _Beams(model, memory, mask, space, search or Search())
    while beams.alive:
        beams.advance()
    return [sorted(ended, key=lambda hypothesis: -hypothesis.score)[: beams.search.width] for ended in beams.ended]


def ctc_share(model: GreenformerForSpeechSeq2Seq, search: Search) -> float:
    """Share of CTC in the score of a hypothesis: that of the search, by default that of the training.

    Raises:
        ValueError: The search asks for CTC, and the network was trained without.
    """
    if search.ctc_weight is None:
        return model.config.ctc_weight
    if search.ctc_weight and not model.config.ctc_weight:
        raise ValueError(f"ctc_weight must be 0 for a network that was trained without CTC, got {search.ctc_weight}")
    return search.ctc_weight


class _Beams:
    """The hypotheses of a batch, W of each utterance that is not done; `memory` is the encoder output."""

    def __init__(
        self,
        model: GreenformerForSpeechSeq2Seq,
        memory: Tensor,
        mask: Tensor | None,
        space: int | None,
        search: Search,
    ) -> None:
        batch, positions = memory.shape[:2]
        self.share = ctc_share(model, search)
        self.model, self.memory, self.mask, self.search, self.space = model, memory, mask, search, space
        self.end = cast(int, model.config.eos_token_id)
        room = model.config.max_position_embeddings - 1
        most = positions if mask is None else mask.sum(1)
        self.longest = torch.full((batch,), 0, device=memory.device) + most
        self.prefixes: Prefixes | None = None
        if self.share:
            blank = cast(int, model.config.pad_token_id)
            logits = model.ctc(memory)
            self.prefixes = Prefixes(logits, self.longest.clone(), search.width, blank=blank, end=self.end)
        if search.longest is not None:
            self.longest.fill_(search.longest)
        self.longest.clamp_(max=room)
        self.ended: list[list[Hypothesis]] = [[] for _ in range(batch)]
        self.who = list(range(batch))
        start = cast(int, model.config.decoder_start_token_id)
        self.tokens = torch.full((batch, search.width, 1), start, device=memory.device)
        # At the start all beams are equal, so only the first one counts.
        self.log_p = torch.full((batch, search.width), -torch.inf, device=memory.device, dtype=torch.float32)
        self.log_p[:, 0] = 0
        self.words = torch.zeros_like(self.log_p)
        self.between = torch.ones_like(self.log_p, dtype=torch.bool)  # the next character begins a word
        self.history = Beams(batch, search.width, memory.device)
        cached = search.cached and self.share < 1 and model.decoder.keeps_cache
        self.cache = EncoderDecoderCache(self._layers(), DynamicCache()) if cached else None

    def _layers(self) -> DynamicCache:
        """Cache of the decoder's self-attention: beams share rows by a mask where that is enough, else each has one."""
        cache = DynamicCache()
        for part in places_of(cast(Any, self.model.decoder.layers))[0]:
            masks = (
                isinstance(part, SelfAttention)
                and part.mechanism.only_masks
                # How far a shared key is from a query is another distance in every beam.
                and (part.position is None or part.position.acts != "scores")
            )
            cache.layers.append(BeamLayer(self.history) if masks else DynamicLayer())
        return cache

    @property
    def alive(self) -> bool:
        return bool(self.who)

    def advance(self) -> None:
        """Add one character to the hypotheses."""
        search, step = self.search, self.tokens.shape[2] - 1
        following = self._next()  # (B, W, V)
        if search.end_threshold is not None:
            self._hold_back(following, search.end_threshold)
        total = following + self.log_p[..., None]  # (B, W, V)
        last = step >= self.longest
        if step < search.shortest:
            going_on = total.clone()
            going_on[..., self.end] = -torch.inf
            # By CTC a text may have no room for a further character before its limit.
            room = ~last & (going_on > -torch.inf).flatten(1).any(1)
            total[room] = going_on[room]
        if bool(last.any()):
            ends = total[last][..., self.end].clone()
            total[last] = -torch.inf
            total[last, :, self.end] = ends
        words = self._words(total.shape[2])
        score = search.alpha * total / (step + 1) ** search.length_power + search.gamma * words.sqrt()
        # Twice as many as continue, as at most half of them can end.
        best, choices = score.flatten(1).topk(min(2 * search.width, score[0].numel()), 1)
        beam, token = choices // total.shape[2], choices % total.shape[2]
        ends = token == self.end
        self._end(best, total.flatten(1).gather(1, choices), beam, ends)
        # A stable sort: those that continue stay in order.
        order = ends.int().argsort(dim=1, stable=True)[:, : search.width]
        self._go_on(beam.gather(1, order), token.gather(1, order), total, words, best.gather(1, order))
        self._leave(last)

    def _next(self) -> Tensor:
        """Log-probability of each next character and of the end (B, W, V); -inf for other special tokens."""
        if self.prefixes is None:
            log_p = self._attended()
        else:
            # Not `lerp`, for which two infinities of one sign are no number.
            log_p = self.share * self.prefixes.next().float()
            if self.share < 1:
                log_p += (1 - self.share) * self._attended()
        config = self.model.config
        for mark in {config.pad_token_id, config.decoder_start_token_id, config.bos_token_id} - {None, self.end}:
            log_p[..., mark] = -torch.inf
        return log_p

    def _hold_back(self, following: Tensor, threshold: float) -> None:
        """Make the end impossible where it is not likely enough beside the best character; in place."""
        ends = following[..., self.end].clone()
        following[..., self.end] = -torch.inf
        early = (ends <= threshold * following.amax(2)) & (following.amax(2) > -torch.inf)
        # At its limit a text must end.
        early &= (self.tokens.shape[2] - 1 < self.longest)[:, None]
        following[..., self.end] = ends.masked_fill(early, -torch.inf)

    def _attended(self) -> Tensor:
        """Log-probability of each next token by the decoder (B, W, V)."""
        rows = self.tokens.flatten(0, 1)
        self.history.step()
        out = self.model.decoder(
            rows if self.cache is None else rows[:, -1:],
            None,
            self.memory,
            self.mask,
            past_key_values=self.cache,
            use_cache=self.cache is not None,
            score=self.model.scores,
            return_dict=True,
        )
        logits = self.model.scores(out.last_hidden_state[:, -1]).float()
        return logits.log_softmax(1).unflatten(0, self.log_p.shape)

    def _words(self, vocabulary: int) -> Tensor:
        """Number of words of each hypothesis with each character added (B, W, V)."""
        added = self.words.new_ones(vocabulary)
        added[self.end] = 0
        if self.space is None:
            return self.words[..., None] + added
        added[self.space] = 0
        return self.words[..., None] + added * self.between[..., None]

    def _end(self, best: Tensor, log_p: Tensor, beam: Tensor, ends: Tensor) -> None:
        """Keep the hypotheses that end, of the first W of each utterance."""
        ended = ends[:, : self.search.width] & (best[:, : self.search.width] > -torch.inf)
        for row, place in ended.nonzero().tolist():
            tokens = tuple(self.tokens[row, beam[row, place], 1:].tolist())
            hypothesis = Hypothesis(tokens, best[row, place].item(), log_p[row, place].item())
            self.ended[self.who[row]].append(hypothesis)

    def _go_on(self, beam: Tensor, token: Tensor, total: Tensor, words: Tensor, best: Tensor) -> None:
        """Make the chosen characters part of the hypotheses."""
        chosen = beam * total.shape[2] + token
        self.log_p, self.words = (x.flatten(1).gather(1, chosen) for x in (total, words))
        # A hypothesis that has ended and fills up the width, where too few continue, does not count.
        self.log_p.masked_fill_((token == self.end) | (best == -torch.inf), -torch.inf)
        self.between = token == self.space if self.space is not None else self.between
        self.tokens = torch.cat([self.tokens.gather(1, beam[..., None].expand_as(self.tokens)), token[..., None]], 2)
        if self.prefixes is not None:
            self.prefixes.follow(beam, token)
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
        remaining = (self.longest - self.tokens.shape[2] + 1).clamp(min=0)
        remaining = remaining if self.space is None else (remaining + 1) // 2
        # Characters of the longest text that a hypothesis can become, with its end.
        most = (self.longest + 1).clamp(min=1)[:, None] ** search.length_power
        words = (self.words + remaining[:, None]).sqrt()
        bound = (search.alpha * self.log_p / most + search.gamma * words).amax(1).tolist()
        stays = []
        for row, who in enumerate(self.who):
            ended = self.ended[who]
            # log P only falls: no open hypothesis can become better than the ones that have ended.
            beaten = bool(ended) and max(hypothesis.score for hypothesis in ended) >= bound[row]
            if not (beaten or len(ended) >= search.width or bool(last[row]) or bound[row] == -float("inf")):
                stays.append(row)
        if len(stays) == len(self.who):
            return
        before, self.who = len(self.who), [self.who[row] for row in stays]
        rows = torch.tensor(stays, device=self.log_p.device, dtype=torch.long)
        for name in ("tokens", "log_p", "words", "between", "longest", "memory", "mask"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value[rows])
        if self.prefixes is not None:
            self.prefixes.keep(rows)
        if self.cache is not None:
            self.history.keep(rows)
            for layer in cast(Any, self.cache.self_attention_cache.layers):
                layer.batch_select_indices(rows if isinstance(layer, BeamLayer) else _rows(rows, search.width))
            for layer in cast(Any, self.cache.cross_attention_cache.layers):
                # One row for all beams, or one for each.
                layer.batch_select_indices(_rows(rows, layer.keys.shape[0] // before))


def _rows(utterances: Tensor, count: int) -> Tensor:
    """Rows of some utterances, where each has `count` of them."""
    return (utterances[:, None] * count + torch.arange(count, device=utterances.device)).flatten()
