"""Tiny variants of the decoders since 2023, and of their rotary scalings; used by models.py.

Qwen3 (norms of the heads of queries and keys), Phi-3 (fused matrices, long-rope), SmolLM3 (layers
without rotary embedding), GPT-NeoX (two norms in parallel), YaRN.
"""

import transformers as tf

from golden.models import FEW_LENGTHS, VISIBLE_EPS, VOCAB, Tensors, Variant
from golden.models import llama, llama_settings, old_rope_config, qwen2, rope, variant

# Beyond the original length of 16, and within it.
SHORT_AND_LONG = (7, 16, 29)

# Of the eight frequencies of heads of 16: one is kept, three are blended, four are divided.
YARN = dict(factor=4.0, original_max_position_embeddings=16, beta_fast=2.0, beta_slow=0.1)


def qwen3(name: str, **options) -> Variant:
    """A Qwen3 of d_model 32 with two key-value heads, whose heads are wider than d_model / 4."""
    settings = llama_settings() | dict(num_key_value_heads=2, head_dim=12)
    return variant(name, tf.Qwen3ForCausalLM, tf.Qwen3Config, settings, options)


def smollm3(name: str, **options) -> Variant:
    """A SmolLM3 of d_model 32, four layers, two key-value heads."""
    settings = llama_settings() | dict(num_key_value_heads=2, num_hidden_layers=4)
    settings |= dict(pad_token_id=None, bos_token_id=None, eos_token_id=None)
    return variant(name, tf.SmolLM3ForCausalLM, tf.SmolLM3Config, settings, options)


def phi3(name: str, **options) -> Variant:
    """A Phi-3 of d_model 32 with two key-value heads of 8."""
    settings = llama_settings() | dict(num_key_value_heads=2, pad_token_id=None)
    # Phi-3 has the original length outside `rope_parameters`, where it wins.
    settings |= dict(bos_token_id=None, eos_token_id=None, original_max_position_embeddings=16)
    return variant(name, tf.Phi3ForCausalLM, tf.Phi3Config, settings, options)


def neox(name: str, **options) -> Variant:
    """A GPT-NeoX of d_model 32, head_dim 8."""
    settings = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    settings |= dict(intermediate_size=56, max_position_embeddings=64)
    return variant(name, tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig, settings, options)


def long_rope(dim: int, **parameters: float) -> dict:
    """Long-rope factors of rotary embedding on `dim` dimensions, trained on 16 positions."""
    half = dim // 2
    return rope(
        "longrope",
        1000.0,
        short_factor=[1.0 + 0.05 * i for i in range(half)],
        long_factor=[1.0 + 0.9 * i for i in range(half)],
        original_max_position_embeddings=16,
        **parameters,
    )


def hub_phi3_config(config: dict) -> None:
    """As published: `rope_scaling` with `type`, the original length and the share on top."""
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters["rope_theta"]
    config["partial_rotary_factor"] = parameters["partial_rotary_factor"]
    config["original_max_position_embeddings"] = parameters["original_max_position_embeddings"]
    keys = ("short_factor", "long_factor")
    config["rope_scaling"] = {key: parameters[key] for key in keys} | {"type": "longrope"}


def hub_neox_config(config: dict) -> None:
    """As published: rotary_pct and rotary_emb_base."""
    parameters = config.pop("rope_parameters")
    config["rotary_pct"] = parameters["partial_rotary_factor"]
    config["rotary_emb_base"] = parameters["rope_theta"]
    for key in ("attention_bias", "tie_word_embeddings"):
        del config[key]


def hub_neox_tensors(tensors: Tensors) -> Tensors:
    """The output matrix is called embed_out, and each layer stores what nobody reads."""
    result = {name.replace("lm_head.", "embed_out."): values for name, values in tensors.items()}
    unread = tensors["gpt_neox.embed_in.weight"].new_full((1,), 7.0)
    return result | {"gpt_neox.layers.0.attention.rotary_emb.inv_freq": unread}


def old_smollm3_config(config: dict) -> None:
    """Layers without rotary embedding are given by their interval alone."""
    old_rope_config(config)
    del config["no_rope_layers"], config["layer_types"]


def qwen_variants() -> list[Variant]:
    """Qwen2 with YaRN, and Qwen3."""
    return [
        qwen2(
            "qwen2-yarn",
            num_attention_heads=2,
            num_key_value_heads=1,
            rope_parameters=rope("yarn", 1000.0, **YARN),
            lengths=SHORT_AND_LONG,
        ),
        qwen2(
            "qwen2-yarn-old",  # and the defaults of YaRN's options
            num_attention_heads=2,
            rope_parameters=rope(
                "yarn", 1000.0, factor=4.0, original_max_position_embeddings=2048
            ),
            max_position_embeddings=2048,
            lengths=FEW_LENGTHS,
            edit_config=old_rope_config,
        ),
        llama(
            "llama-yarn-mscale",
            num_attention_heads=2,
            rope_parameters=rope("yarn", 1000.0, **YARN, mscale=2.0, mscale_all_dim=0.5),
            lengths=FEW_LENGTHS,
        ),
        llama(
            "llama-yarn-attention",
            num_attention_heads=2,
            rope_parameters=rope("yarn", 1000.0, **YARN, attention_factor=0.8, truncate=False),
            lengths=FEW_LENGTHS,
        ),
        qwen3("qwen3", tie_word_embeddings=True, bf16_run=True),
        qwen3(
            "qwen3-bias",
            attention_bias=True,
            rms_norm_eps=VISIBLE_EPS,
            lengths=FEW_LENGTHS,
            rope_parameters=rope("yarn", 1000.0, **YARN),
        ),
        qwen3(
            "qwen3-window",
            num_hidden_layers=3,
            use_sliding_window=True,
            sliding_window=8,
            max_window_layers=1,
            lengths=FEW_LENGTHS,
        ),
    ]


def other_variants() -> list[Variant]:
    """SmolLM3, Phi-3 and GPT-NeoX."""
    return [
        smollm3("smollm3"),
        smollm3(
            "smollm3-interval",  # a layer in three without rotary embedding, and biases
            no_rope_layer_interval=3,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=False,
            rms_norm_eps=VISIBLE_EPS,
            lengths=FEW_LENGTHS,
            edit_config=old_smollm3_config,
        ),
        smollm3(
            "smollm3-layers",
            no_rope_layers=[0, 1, 1, 0],
            use_sliding_window=True,
            sliding_window=6,
            lengths=FEW_LENGTHS,
        ),
        phi3("phi3", rms_norm_eps=VISIBLE_EPS),
        phi3(
            "phi3-longrope",
            rope_parameters=long_rope(8),
            lengths=SHORT_AND_LONG,
            context_is_length=True,
        ),
        phi3(
            "phi3-partial",  # as Phi-4-mini
            num_attention_heads=2,
            num_key_value_heads=1,
            rope_parameters=long_rope(12, partial_rotary_factor=0.75, attention_factor=1.3),
            tie_word_embeddings=True,
            lengths=SHORT_AND_LONG,
            context_is_length=True,
        ),
        phi3(
            "phi3-hub",
            rope_parameters=long_rope(8),
            lengths=(5, 23),
            context_is_length=True,
            edit_config=hub_phi3_config,
        ),
        phi3("phi3-window", sliding_window=8, lengths=FEW_LENGTHS),
        neox("gpt-neox", rope_parameters=rope("default", 1000.0, partial_rotary_factor=0.25)),
        neox(
            "gpt-neox-sequential",
            use_parallel_residual=False,
            attention_bias=False,
            tie_word_embeddings=True,
            rope_parameters=rope("default", 1000.0, partial_rotary_factor=1.0),
            layer_norm_eps=VISIBLE_EPS,
            lengths=FEW_LENGTHS,
        ),
        neox(
            "gpt-neox-hub",
            rope_parameters=rope("default", 500.0, partial_rotary_factor=0.5),
            hidden_act="gelu_new",
            lengths=FEW_LENGTHS,
            edit_config=hub_neox_config,
            edit_tensors=hub_neox_tensors,
        ),
    ]
