"""Speech recognition: an encoder-decoder after a front end. Cahyawijaya 2021, 4.1, figure 4.2."""

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
    """Embedding of spectrograms in width d: front end, linear layer, layer norm, positions."""

    def make_content(self, config: GreenformerConfig, width: int) -> None:  # noqa: D102
        assert isinstance(config, SpeechConfig)
        self.front_end = VGG(config.spectrogram().bins, config.channels)
        self.projection = linear_layer(self.front_end.width, width, config.input_rank)
        # Scaled to the size of the positions that are added, which would be lost beside louder sound.
        self.scale = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(self, features: Float[Tensor, "B T F"], mask: Tensor | None) -> Float[Tensor, "B t d"]:
        """Embed spectrograms (B, T, F) to (B, T // 4, d)."""
        return self.place(self.scale(self.projection(self.front_end(features, mask))))


class Scaled(GreenformerPreTrainedModel):
    """Models whose convolutions are initialised as in He 2015, arXiv:1502.01852, eq. 10.

    With weights as small as those of the linear layers, sound would be a hundredth of the positions added to it.
    """

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(cast(Tensor, module.bias))
        else:
            super()._init_weights(module)


class SpeechEncoder(Scaled, GreenformerModel):
    """The encoder: from spectrograms to hidden states."""

    config_class = SpeechConfig
    main_input_name = "input_features"

    def embed(self, config: GreenformerConfig) -> Any:  # noqa: D102
        return AudioEmbedding(config)

    def get_input_embeddings(self) -> nn.Module:
        """The module that reads the input: the first convolution."""
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
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Encode spectrograms.

        Args:
            input_features: Normalised log power spectrograms (B, T, F).
            attention_mask: Mask (B, T), 1 or True = keep; padding is at the end.
            output_hidden_states: Whether to return the input of every layer too.
            output_attentions: Whether to return the attention weights of every layer too, (B, H, N, N), see
                `Attention.weights`.

        Returns:
            last_hidden_state (B, T // 4, d); values of padding are finite and have no meaning.

        Raises:
            ValueError: Input and mask do not fit each other or the network, or the network cannot return attention
                weights or the inputs of its layers.
        """
        self.check_hidden_states(output_hidden_states)
        attentions = self.attention_list(output_attentions)
        if attention_mask is not None and attention_mask.shape != input_features.shape[:2]:
            expected = tuple(input_features.shape[:2])
            raise ValueError(f"attention_mask must be {expected}, got {tuple(attention_mask.shape)}")
        mask = None if attention_mask is None else attention_mask.bool()
        x = self.embedding(input_features, mask)
        key_mask = None if mask is None else shortened(mask)
        ran = run(self.layers, x, key_mask, attentions=attentions, depth=self.depth)
        out = self.finish(ran.x, key_mask, ran.loss)
        out.steps = ran.steps
        out.attentions = None if attentions is None else tuple(attentions)
        return out


class GreenformerForSpeechSeq2Seq(Scaled, EncoderDecoder):
    """A speech recogniser: writes the characters that are spoken.

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
        """The embedding of characters, as a vocabulary may grow."""
        return self.decoder.get_input_embeddings()

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the embedding of characters."""
        self.decoder.set_input_embeddings(value)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Change the number of characters, as in transformers; the linear layer of CTC keeps those that it has."""
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        tokens = cast(int, self.config.vocab_size)
        if self.config.ctc_weight and tokens != self.ctc.out_features:
            old, rows = self.ctc, min(tokens, self.ctc.out_features)
            self.ctc = nn.Linear(old.in_features, tokens).to(old.weight)
            self._init_weights(self.ctc)
            with torch.no_grad():
                self.ctc.weight[:rows], self.ctc.bias[:rows] = old.weight[:rows], old.bias[:rows]
        return embeddings

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
            input_features: Normalised log power spectrograms (B, T, F).
            attention_mask: Mask of the spectrograms (B, T), 1 or True = keep; padding is at the end.
            decoder_input_ids: Characters so far (B, N); by default the labels, shifted by one to the right.
            decoder_attention_mask: Mask (B, P), 1 = keep, where P counts the positions in the cache too.
            labels: Characters to predict and the end (B, N), -100 where there is no label.
            encoder_outputs: Encoder output of an earlier call, in place of `input_features`.
            past_key_values: Keys and values of the characters before, and of the encoder output.
            use_cache: Whether to return keys and values for the positions to come.
            num_items_in_batch: Number that the loss is divided by; by default the number of labels here.
            **kwargs: Further arguments of encoder and decoder.

        Returns:
            loss in nats a character, if labels are given, and logits (B, N, vocabulary); with `ctc_weight` w the loss
            in training is (1 - w) cross-entropy + w CTC, both by the number of labels.

        Raises:
            ValueError: Neither decoder_input_ids nor labels are given, or inputs do not fit each other.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_features, attention_mask, return_dict=True, **kwargs)
        encoder_mask = None if attention_mask is None else shortened(attention_mask)
        kwargs |= {"past_key_values": past_key_values, "use_cache": use_cache}
        out = self.decode(
            encoder_outputs, encoder_mask, decoder_input_ids, decoder_attention_mask, labels, num_items_in_batch,
            **kwargs,
        )  # fmt: skip
        if labels is not None and self.training and self.config.ctc_weight:
            weight = self.config.ctc_weight
            ctc_loss = self._ctc_loss(encoder_outputs[0], encoder_mask, labels, num_items_in_batch)
            out.loss = torch.lerp(cast(Tensor, out.loss), ctc_loss, weight)
        return out

    def _ctc_loss(
        self, encoded: Tensor, encoder_mask: Tensor | None, labels: Tensor, items: Tensor | int | None
    ) -> Tensor:
        """CTC loss in nats a label, without the end token; the padding token is the blank. Graves 2006.

        An utterance with fewer positions than characters has no alignment, and its loss is 0; `Speech.build` tells how
        many there are.
        """
        batch, positions = encoded.shape[:2]
        labelled = labels != IGNORED
        spoken = labelled & (labels != self.config.eos_token_id)
        lengths = (
            labelled.new_full((batch,), positions, dtype=torch.long) if encoder_mask is None else encoder_mask.sum(1)
        )
        logits = self.ctc(encoded)
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
        return total / (labelled.sum().clamp(min=1) if items is None else items)


AutoConfig.register(SpeechConfig.model_type, SpeechConfig)
AutoModelForSpeechSeq2Seq.register(SpeechConfig, GreenformerForSpeechSeq2Seq)
