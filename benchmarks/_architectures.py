"""Small networks of the architectures of transformers, drawn at random: what people may bring.

A row is the class and what its configuration needs beside `SMALL`, whose names every configuration takes that has them;
none of those that are None.
"""

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

SMALL: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2,
    "decoder_start_token_id": 0, "forced_eos_token_id": None, "forced_bos_token_id": None, "unk_token_id": 3,
    "embedding_size": 24, "num_key_value_heads": 2, "head_dim": 8, "image_size": 32, "patch_size": 8, "num_channels": 3,
    "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64, "d_model": 32, "encoder_layers": 3, "decoder_layers": 3,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "num_labels": 3, "vision_feature_layer": -1, "projection_dim": 24, "ffn_dim": 48, "word_embed_proj_dim": 32,
}  # fmt: skip
"""Sizes by the names that configurations have for them."""

TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48,
        "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
IMAGE = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32,
         "patch_size": 8}  # fmt: skip
SOUND = {"conv_dim": (32, 32), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2,
         "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0,
         "mask_feature_prob": 0.0}  # fmt: skip
STAGES = {
    "depths": [1, 1, 2],
    "num_heads": [2, 2, 4],
    "embed_dim": 16,
    "window_size": 4,
    "patch_size": 2,
    "num_attention_heads": None,
    "num_hidden_layers": None,
}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    # Encoders of text.
    "bert": ("BertForSequenceClassification", {}),
    "bert_mlm": ("BertForMaskedLM", {}),
    "roberta": ("RobertaModel", {}),
    "xlm_roberta": ("XLMRobertaForSequenceClassification", {}),
    "camembert": ("CamembertModel", {}),
    "distilbert": ("DistilBertForMaskedLM", {"dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 48}),
    "albert": ("AlbertForMaskedLM", {}),
    "electra": ("ElectraForPreTraining", {}),
    "deberta": ("DebertaModel", {"pos_att_type": ["p2c", "c2p"], "relative_attention": True}),
    "deberta_v2": ("DebertaV2ForSequenceClassification", {"pos_att_type": ["p2c", "c2p"], "relative_attention": True}),
    "mpnet": ("MPNetModel", {}),
    "modernbert": ("ModernBertModel", {"local_attention": 8}),
    "nomic_like_bert": ("BertModel", {"is_decoder": False, "hidden_act": "silu"}),
    "longformer": ("LongformerModel", {"attention_window": [4, 4, 4, 4]}),
    "big_bird": ("BigBirdModel", {"attention_type": "original_full"}),
    "funnel": (
        "FunnelModel",
        {"num_hidden_layers": None, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48},
    ),
    "roformer": ("RoFormerModel", {}),
    "nystromformer": ("NystromformerModel", {"num_landmarks": 4, "segment_means_seq_len": 16}),
    "yoso": ("YosoModel", {"use_expectation": True, "num_hash": 4}),
    "esm": ("EsmModel", {"position_embedding_type": "rotary"}),
    "fnet": ("FNetModel", {}),
    "squeezebert": ("SqueezeBertModel", {"embedding_size": 32}),
    "mobilebert": ("MobileBertModel", {"true_hidden_size": 16, "intra_bottleneck_size": 16}),
    "canine": ("CanineModel", {"num_hash_buckets": 64, "num_hash_functions": 4}),
    "layoutlm": ("LayoutLMModel", {}),
    "perceiver": (
        "PerceiverForMaskedLM",
        {
            "d_latents": 16,
            "num_latents": 8,
            "num_self_attends_per_block": 2,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 2,
            "qk_channels": 16,
            "v_channels": 16,
        },
    ),
    # Language models.
    "gpt2": ("GPT2LMHeadModel", {}),
    "gpt_neo": ("GPTNeoForCausalLM", {"num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]]}),
    "gpt_neox": ("GPTNeoXForCausalLM", {}),
    "gptj": ("GPTJForCausalLM", {"rotary_dim": 4}),
    "opt": ("OPTForCausalLM", {}),
    "bloom": ("BloomForCausalLM", {}),
    "falcon": ("FalconForCausalLM", {"head_dim": None}),
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "gemma": ("GemmaForCausalLM", {}),
    "gemma3": ("Gemma3ForCausalLM", {"layer_types": ["sliding_attention", "full_attention"] * 2}),
    "phi": ("PhiForCausalLM", {"num_key_value_heads": 4}),
    "phi3": ("Phi3ForCausalLM", {}),
    "stablelm": ("StableLmForCausalLM", {}),
    "mpt": ("MptForCausalLM", {"n_layers": 4, "n_heads": 4, "expansion_ratio": 2}),
    "xlnet": ("XLNetLMHeadModel", {"max_position_embeddings": None, "d_inner": 48}),
    "mamba": ("MambaForCausalLM", {"state_size": 8}),
    "mamba2": ("Mamba2ForCausalLM", {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}),
    "rwkv": ("RwkvForCausalLM", {}),
    # Mixtures of experts.
    "mixtral": ("MixtralForCausalLM", {}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {"shared_expert_intermediate_size": 24}),
    "olmoe": ("OlmoeForCausalLM", {}),
    "gpt_oss": ("GptOssForCausalLM", {}),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "switch": (
        "SwitchTransformersForConditionalGeneration",
        {
            "d_ff": 48,
            "d_kv": 8,
            "num_layers": 3,
            "num_decoder_layers": 3,
            "num_heads": 4,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "decoder_start_token_id": 0,
        },
    ),
    # Encoder-decoders.
    "t5": (
        "T5ForConditionalGeneration",
        {
            "d_ff": 48,
            "d_kv": 8,
            "num_layers": 3,
            "num_decoder_layers": 3,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "umt5": (
        "UMT5ForConditionalGeneration",
        {"d_ff": 48, "d_kv": 8, "num_layers": 3, "num_decoder_layers": 3, "num_heads": 4},
    ),
    "bart": ("BartForConditionalGeneration", {}),
    "mbart": ("MBartForConditionalGeneration", {}),
    "marian": ("MarianMTModel", {}),
    "pegasus": ("PegasusForConditionalGeneration", {}),
    "m2m_100": ("M2M100ForConditionalGeneration", {}),
    "led": (
        "LEDForConditionalGeneration",
        {
            "attention_window": [4, 4, 4, 4],
            "encoder_layers": 4,
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
        },
    ),
    "blenderbot": ("BlenderbotForConditionalGeneration", {}),
    "encoder_decoder": ("EncoderDecoderModel", {}),
    # Images.
    "vit": ("ViTForImageClassification", {}),
    "deit": ("DeiTForImageClassification", {}),
    "beit": ("BeitForImageClassification", {}),
    "swin": ("SwinForImageClassification", STAGES),
    "convnext": (
        "ConvNextForImageClassification",
        {"image_size": 64, "patch_size": 4, "hidden_sizes": [16, 16, 24, 32], "depths": [1, 1, 2, 1]},
    ),
    "dinov2": ("Dinov2Model", {}),
    "resnet": ("ResNetForImageClassification", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}),
    "segformer": (
        "SegformerForImageClassification",
        {
            "hidden_sizes": [16, 16, 32, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 16,
        },
    ),
    "detr": (
        "DetrForObjectDetection",
        {
            "num_queries": 5,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "use_timm_backbone": False,
            "backbone": None,
            "use_pretrained_backbone": False,
            "backbone_config": "resnet",
        },
    ),
    "clip": ("CLIPModel", {"text_config": TEXT, "vision_config": IMAGE}),
    "siglip": ("SiglipModel", {"text_config": TEXT, "vision_config": IMAGE}),
    "blip": ("BlipModel", {"text_config": TEXT, "vision_config": IMAGE}),
    # Sound.
    "wav2vec2": ("Wav2Vec2ForCTC", SOUND),
    "hubert": ("HubertModel", SOUND),
    "wavlm": ("WavLMModel", SOUND),
    "whisper": (
        "WhisperForConditionalGeneration",
        {"num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 24},
    ),
    "ast": ("ASTForAudioClassification", {"num_mel_bins": 16, "max_length": 48}),
    "speech_to_text": (
        "Speech2TextForConditionalGeneration",
        {
            "input_feat_per_channel": 16,
            "conv_channels": 16,
            "max_source_positions": 64,
            "max_target_positions": 64,
            "num_conv_layers": 2,
        },
    ),
}


def network(name: str) -> PreTrainedModel:
    """A network of an architecture; always the same weights.

    Biases and scales are stirred: as first drawn they are zero and one, and so is much of what could go wrong.
    """
    torch.manual_seed(0)
    cls = getattr(transformers, ARCHITECTURES[name][0])
    model = cls(config_of(name)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif parameter.requires_grad:  # and not what a class computes, and does not save
                parameter.mul_(3)
    return model


def config_of(name: str) -> Any:
    """The configuration of an architecture, small."""
    if name == "encoder_decoder":
        encoder, decoder = config_of("bert"), config_of("bert")
        config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
        config.decoder_start_token_id, config.pad_token_id = 1, 0
        return config
    class_name, options = ARCHITECTURES[name]
    cls = getattr(transformers, class_name).config_class
    plain = cls()
    sizes = {key: value for key, value in SMALL.items() if hasattr(plain, key)} | options
    if sizes.get("backbone_config") in ARCHITECTURES:
        sizes["backbone_config"] = config_of(sizes["backbone_config"])
    return cls(**{key: value for key, value in sizes.items() if value is not None or key not in SMALL})
