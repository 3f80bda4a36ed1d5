"""Tiny variants of Gemma 2 and Gemma 3; used by models.py and gguf_models.py.

The weight of a Gemma norm is one more than what is stored; GGUF stores the sum.
"""

import gguf
import numpy as np
import torch
import transformers as tf

from golden.gguf_architectures import ARCH, Architecture, Config, add_sizes
from golden.models import FEW_LENGTHS, VISIBLE_EPS, VOCAB, Tensors, Variant, rope, variant


@torch.no_grad()
def take_one_from_norms(model: tf.PreTrainedModel) -> None:
    """Stored weights near 0."""
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight") and "vision" not in name:
            parameter.sub_(1.0)


@torch.no_grad()
def quiet_layers(model: tf.PreTrainedModel) -> None:
    """Layers that add little, so that many of them do not multiply round-off."""
    take_one_from_norms(model)
    for name, parameter in model.named_parameters():
        if "post_" in name and name.endswith("norm.weight"):
            parameter.sub_(0.9)


def settings(**options) -> dict:
    """d_model 32, two key-value heads; the divisor of scores is not head_dim."""
    sizes = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=44, num_hidden_layers=3)
    sizes |= dict(num_attention_heads=4, num_key_value_heads=2, head_dim=12)
    sizes |= dict(max_position_embeddings=64, query_pre_attn_scalar=20, sliding_window=8)
    return sizes | options


def gemma2(name: str, **options) -> Variant:
    """A Gemma 2 whose caps show."""
    caps = dict(attn_logit_softcapping=2.0, final_logit_softcapping=6.0)
    options = dict(prepare=take_one_from_norms) | options
    return variant(name, tf.Gemma2ForCausalLM, tf.Gemma2Config, settings(**caps), options)


def two_ropes(local: float, base: float, **scaling: float) -> dict:
    """Rotary embedding of local and of global layers."""
    kind = "linear" if scaling else "default"
    return dict(
        sliding_attention=rope("default", local), full_attention=rope(kind, base, **scaling)
    )


def gemma3(name: str, **options) -> Variant:
    """A Gemma 3 whose bases show."""
    options = dict(prepare=take_one_from_norms) | options
    sizes = settings(rope_parameters=two_ropes(100.0, 5000.0, factor=2.0))
    return variant(name, tf.Gemma3ForCausalLM, tf.Gemma3TextConfig, sizes, options)


def gemma3_with_images(name: str, **options) -> Variant:
    """The text of a Gemma 3 that reads images too."""
    text = settings(rope_parameters=two_ropes(100.0, 5000.0, factor=2.0), sliding_window_pattern=3)
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, image_size=8)
    vision |= dict(num_attention_heads=2, patch_size=4)
    parts = dict(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    parts |= dict(image_token_index=VOCAB - 1, boi_token_index=VOCAB - 2, eoi_token_index=VOCAB - 3)
    prompts = ((5,), (7, 2, 60), tuple((11 * i * i + 3 * i) % 60 for i in range(29)))
    options = dict(prepare=take_one_from_norms, prompts=prompts) | options
    return variant(
        name, tf.Gemma3ForConditionalGeneration, tf.Gemma3Config, parts, options
    )


def old_gemma2_config(config: dict) -> None:
    """As published in 2024: no layer types, the base on top, and both names of the activation."""
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["hidden_act"] = config["hidden_activation"]
    del config["layer_types"], config["attn_logit_softcapping"], config["final_logit_softcapping"]


def old_gemma3_config(config: dict) -> None:
    """As published in 2025: a pattern, and the bases and the scaling on top."""
    ropes = config.pop("rope_parameters")
    config["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    config["rope_theta"] = ropes["full_attention"].pop("rope_theta")
    config["rope_scaling"] = ropes["full_attention"]
    config.pop("_sliding_window_pattern", None)
    config["sliding_window_pattern"] = 2
    del config["layer_types"]


def hub_image_tensors(tensors: Tensors) -> Tensors:
    """As published: language_model.model. in place of model.language_model."""
    return {
        name.replace("model.language_model.", "language_model.model.").replace(
            "model.vision_tower", "vision_tower"
        ).replace("model.multi_modal", "multi_modal"): values
        for name, values in tensors.items()
    }


def gemma_variants() -> list[Variant]:
    """Gemma 2 and Gemma 3."""
    types = ["full_attention", "sliding_attention", "sliding_attention"]
    return [
        gemma2("gemma2", bf16_run=True),
        gemma2(
            "gemma2-nocaps",
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            attention_bias=True,
            tie_word_embeddings=False,
            rms_norm_eps=VISIBLE_EPS,
            layer_types=types,
        ),
        gemma2(
            "gemma2-old",  # and the caps that are meant without a word about them
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
            edit_config=old_gemma2_config,
        ),
        gemma3("gemma3", num_hidden_layers=7, bf16_run=True),
        gemma3(
            "gemma3-types",
            layer_types=types,
            tie_word_embeddings=False,
            final_logit_softcapping=6.0,
            rms_norm_eps=VISIBLE_EPS,
            rope_parameters=two_ropes(100.0, 5000.0),
            lengths=FEW_LENGTHS,
        ),
        gemma3(
            "gemma3-old",
            num_hidden_layers=4,
            sliding_window_pattern=2,
            edit_config=old_gemma3_config,
            lengths=FEW_LENGTHS,
        ),
        gemma3_with_images("gemma3-images"),
        gemma3_with_images("gemma3-images-hub", edit_tensors=hub_image_tensors),
    ]


# --- GGUF --------------------------------------------------------------------------------------


def convert_gemma(config: Config, name: str, values: np.ndarray, back: bool) -> np.ndarray:
    """Adds one to the weights of norms."""
    if not name.endswith("norm.weight"):
        return values
    return values - np.float32(1) if back else values + np.float32(1)


def add_gemma_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    """The keys of llama.cpp's converter for Gemma 2 and Gemma 3."""
    add_sizes(writer, config)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    if config.attn_logit_softcapping:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma2":  # the base is the default
        return
    full = config.rope_parameters["full_attention"]
    writer.add_rope_freq_base(full["rope_theta"])
    if full["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])


GEMMA_ARCHITECTURES = {
    "gemma2": Architecture(ARCH.GEMMA2, tf.Gemma2ForCausalLM, convert_gemma, add_gemma_keys),
    "gemma3_text": Architecture(ARCH.GEMMA3, tf.Gemma3ForCausalLM, convert_gemma, add_gemma_keys),
}


def gguf_settings(**options) -> dict:
    """Rows of 32 and 64 values. The file cannot state the divisor of scores, nor the pattern."""
    sizes = settings(intermediate_size=64, head_dim=16, query_pre_attn_scalar=16)
    return sizes | dict(rms_norm_eps=1e-3) | options


def gguf_gemma2(**options) -> tf.Gemma2Config:
    """Gemma 2 with caps that show."""
    caps = dict(attn_logit_softcapping=2.0, final_logit_softcapping=6.0)
    return tf.Gemma2Config(**gguf_settings(**caps, **options))


def largest_gemma2() -> tf.Gemma2Config:
    """As many layers as the 27B, which alone divides scores by sqrt(d_model / n_heads)."""
    sizes = dict(num_hidden_layers=46, hidden_size=8, intermediate_size=8, head_dim=8)
    sizes |= dict(num_attention_heads=2, num_key_value_heads=1, query_pre_attn_scalar=4)
    return gguf_gemma2(**sizes)


def gguf_gemma3() -> tf.Gemma3TextConfig:
    """Gemma 3: five local layers, a global one, a local one."""
    ropes = two_ropes(10000.0, 1e6, factor=8.0)
    return tf.Gemma3TextConfig(**gguf_settings(num_hidden_layers=7, rope_parameters=ropes))
