"""Speech recognition: encoder and decoder of the house behind a front end. Thesis 4.1, figure 4.2."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSpeechSeq2Seq
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from greenformers.lowrank.linear import linear_layer
from greenformers.model import GreenformerConfig, GreenformerModel, GreenformerPreTrainedModel
from greenformers.model.embedding import Placed
from greenformers.model.loss import IGNORED
from greenformers.model.seq2seq import EncoderDecoder
from greenformers.model.stack import run
from greenformers.speech.config import SpeechConfig
from greenformers.speech.front_end import VGG, shortened


class AudioEmbedding(Placed):
    """Spectrograms to vectors of width d: front end, map, positions."""

    def make_content(self, config: GreenformerConfig, width: int) -> None:  # noqa: D102
        assert isinstance(config, SpeechConfig)
        self.front_end = VGG(config.spectrogram().bins, config.channels)
        self.map = linear_layer(self.front_end.width, width, config.input_rank)
        # As large as the positions that are added: beside louder sound they would be lost.
        self.scale = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(self, features: Float[Tensor, "B T F"], mask: Tensor | None) -> Float[Tensor, "B t d"]:
        """Embed spectrograms (B, T, F) to (B, T // 4, d)."""
        return self.place(self.scale(self.map(self.front_end(features, mask))))


class Scaled(GreenformerPreTrainedModel):
    """Models whose convolutions start as He 2015, arXiv:1502.01852, eq. 10.

    With weights as small as those of the other maps, sound would be a hundredth of the positions added to it.
    """

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(cast(Tensor, module.bias))
        else:
            super()._init_weights(module)


class SpeechEncoder(Scaled, GreenformerModel):
    """The encoder of spectrograms."""

    config_class = SpeechConfig
    main_input_name = "input_features"

    def embed(self, config: GreenformerConfig) -> Any:  # noqa: D102
        return AudioEmbedding(config)

    def get_input_embeddings(self) -> nn.Module:
        """What reads the input: the first convolution."""
        return self.embedding.front_end.convolutions[0]

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the first convolution."""
        self.embedding.front_end.convolutions[0] = value

    @capture_outputs
    def forward(
        self,
        input_features: Float[Tensor, "B T F"],
        attention_mask: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,  # read by capture_outputs
        output_attentions: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Encode spectrograms.

        Args:
            input_features: normalised log power spectrograms (B, T, F).
            attention_mask: 1 or True = keep (B, T); padding stands at the end.
            output_hidden_states: also return the input of every layer.
            output_attentions: also return how much of each position each one gets, (B, H, N, N) a layer, see
                `Attention.weights`.

        Returns:
            last_hidden_state (B, T // 4, d); what stands for no whole position is finite and means nothing.

        Raises:
            ValueError: input and mask do not fit each other or the network, or it has not what is asked for.
        """
        attentions = self.attention_list(output_attentions)
        if attention_mask is not None and attention_mask.shape != input_features.shape[:2]:
            wanted = tuple(input_features.shape[:2])
            raise ValueError(f"attention_mask must be {wanted}, got {tuple(attention_mask.shape)}")
        mask = None if attention_mask is None else attention_mask.bool()
        x = self.embedding(input_features, mask)
        key_mask = None if mask is None else shortened(mask)
        x, loss, _ = run(self.layers, x, key_mask, attentions=attentions)
        out = self.finish(x, key_mask, loss)
        out.attentions = None if attentions is None else tuple(attentions)
        return out


class GreenformerForSpeechSeq2Seq(Scaled, EncoderDecoder):
    """Writes the characters that are spoken.

    >>> model = GreenformerForSpeechSeq2Seq.from_pretrained(folder)
    >>> ids = model.generate(input_features, attention_mask=mask, num_beams=8)
    """

    config: SpeechConfig
    config_class = SpeechConfig
    main_input_name = "input_features"
    _tied_weights_keys = {"score.weight": "decoder.embedding.word.weight"}  # noqa: RUF012 - transformers' own form

    def __init__(self, config: SpeechConfig) -> None:
        super().__init__(config, SpeechEncoder)
        if config.ctc_weight:
            self.ctc = nn.Linear(config.hidden_size, config.vocab_size or 0)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """What reads characters: a vocabulary may grow."""
        return self.decoder.get_input_embeddings()

    def set_input_embeddings(self, value: Any) -> None:
        """Replace what reads characters."""
        self.decoder.set_input_embeddings(value)

    @can_return_tuple
    def forward(
        self,
        input_features: Float[Tensor, "B T F"] | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Int[Tensor, "B N"] | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Int[Tensor, "B N"] | None = None,
        encoder_outputs: BaseModelOutput | tuple[Float[Tensor, "B t d"], ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Score the character that follows each of the decoder's positions.

        Args:
            input_features: normalised log power spectrograms (B, T, F).
            attention_mask: 1 or True = keep (B, T), of the spectrograms; padding stands at the end.
            decoder_input_ids: characters so far (B, N); by default the labels, one place to the right.
            decoder_attention_mask: 1 = keep (B, P), P counting the positions in the cache too.
            labels: the right characters and the end (B, N), -100 where none is asked for.
            encoder_outputs: of an earlier call, in place of `input_features`.
            past_key_values: keys and values of the characters before, and of the encoder's output.
            use_cache: return keys and values for the positions to come.
            num_items_in_batch: what the loss is divided by, where not by the number of labels here.
            **kwargs: to encoder and decoder.

        Returns:
            loss in nats a character, if labels are given, and logits (B, N, vocabulary); with `ctc_weight` w the loss
            in training is (1 - w) cross-entropy + w CTC, both by the number of labels.

        Raises:
            ValueError: neither decoder_input_ids nor labels are given, or inputs do not fit each other.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_features, attention_mask, return_dict=True, **kwargs)
        memory_mask = None if attention_mask is None else shortened(attention_mask)
        kwargs |= {"past_key_values": past_key_values, "use_cache": use_cache}
        out = self.decode(
            encoder_outputs, memory_mask, decoder_input_ids, decoder_attention_mask, labels, num_items_in_batch,
            **kwargs,
        )  # fmt: skip
        if labels is not None and self.training and self.config.ctc_weight:
            share = self.config.ctc_weight
            other = self._ctc_loss(encoder_outputs[0], memory_mask, labels, num_items_in_batch)
            out.loss = torch.lerp(cast(Tensor, out.loss), other, share)
        return out

    def _ctc_loss(
        self, memory: Tensor, memory_mask: Tensor | None, labels: Tensor, items: Tensor | int | None
    ) -> Tensor:
        """CTC in nats a label, the end left out; padding's token is the blank. Graves 2006.

        An utterance with fewer positions than characters has no alignment, and none is asked of it.
        """
        batch, positions = memory.shape[:2]
        asked = labels != IGNORED
        spoken = asked & (labels != self.config.eos_token_id)
        lengths = asked.new_full((batch,), positions, dtype=torch.long) if memory_mask is None else memory_mask.sum(1)
        logits = self.ctc(memory)
        if logits.element_size() < 4:
            logits = logits.float()
        total = F.ctc_loss(
            logits.log_softmax(2).transpose(0, 1),
            labels[spoken],
            lengths,
            spoken.sum(1),
            blank=self.config.pad_token_id or 0,
            reduction="sum",
            zero_infinity=True,
        )
        return total / (asked.sum().clamp(min=1) if items is None else items)


AutoConfig.register(SpeechConfig.model_type, SpeechConfig)
AutoModelForSpeechSeq2Seq.register(SpeechConfig, GreenformerForSpeechSeq2Seq)
