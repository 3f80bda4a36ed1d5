"""How llama.cpp's converter lays out each architecture; used by gguf_models.py.

Rows of llama's and smollm3's attn_q and attn_k are permuted per head: in the file, rotary pairs are
neighbours (2i, 2i+1), not halves (i, i + head_dim / 2). The other architectures keep halves.
GPT-NeoX's queries, keys and values, which transformers stores head by head, come as three stacks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import gguf
import numpy as np
import transformers as tf

Arrays = dict[str, np.ndarray]
Config = tf.PretrainedConfig


def permute(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Halves to neighbours, per head: row (half, i) goes to row (i, half)."""
    head_dim = rows.shape[0] // n_heads
    return rows.reshape(n_heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def unpermute(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """The inverse of permute."""
    head_dim = rows.shape[0] // n_heads
    return rows.reshape(n_heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def as_stored(config: Config, name: str, values: np.ndarray, back: bool) -> np.ndarray:
    """The same layout in both."""
    return values


def convert_llama(config: Config, name: str, values: np.ndarray, back: bool) -> np.ndarray:
    """Permutes queries and keys."""
    reorder = unpermute if back else permute
    if "q_proj" in name:
        return reorder(values, config.num_attention_heads)
    if "k_proj" in name:
        return reorder(values, config.num_key_value_heads)
    return values


def convert_gpt2(config: Config, name: str, values: np.ndarray, back: bool) -> np.ndarray:
    """Conv1D holds (in, out)."""
    return values.T if ".c_" in name and values.ndim == 2 else values


def convert_neox(config: Config, name: str, values: np.ndarray, back: bool) -> np.ndarray:
    """Rows (head, which, i) to (which, head, i)."""
    if "query_key_value" not in name:
        return values
    n_heads = config.num_attention_heads
    axes = (3, n_heads) if back else (n_heads, 3)
    head_dim = config.hidden_size // n_heads
    rows = values.reshape(*axes, head_dim, -1).swapaxes(0, 1)
    return rows.reshape(values.shape)


def head_dim_of(config: Config) -> int:
    """Stated, or d_model over the heads."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def rotary_dim_of(config: Config) -> int:
    """The dimensions of a head that are rotated."""
    return int(head_dim_of(config) * config.rope_parameters.get("partial_rotary_factor", 1.0))


def rope_factors(config: Config) -> np.ndarray:
    """What llama.cpp divides each frequency by, (head_dim / 2), for llama3 scaling."""
    rope = config.rope_parameters
    wave = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, config.head_dim, 2) / config.head_dim)
    periods = rope["original_max_position_embeddings"] / wave
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((periods - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def rope_tensors(config: Config) -> Arrays:
    """The tensors that state frequencies."""
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type")
    if kind == "llama3":
        return {"rope_freqs.weight": rope_factors(config)}
    if kind == "longrope":
        return {
            "rope_factors_long.weight": np.array(rope["long_factor"], np.float32),
            "rope_factors_short.weight": np.array(rope["short_factor"], np.float32),
        }
    return {}


def add_scaling_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    """Linear, YaRN and long-rope."""
    rope = config.rope_parameters
    kind = rope["rope_type"]
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if "attention_factor" in rope:  # the file's multiplies what llama.cpp computes
            implied = 0.1 * math.log(rope["factor"]) + 1
            writer.add_rope_scaling_attn_factors(rope["attention_factor"] / implied)
    elif kind == "longrope":
        original = rope["original_max_position_embeddings"]
        ratio = config.max_position_embeddings / original
        factor = math.sqrt(1 + math.log(ratio) / math.log(original))
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(rope.get("attention_factor", factor))


def add_sizes(writer: gguf.GGUFWriter, config: Config) -> None:
    """What all with rotary embedding have."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)


def add_llama_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    """The keys of llama.cpp's converter for Llama and its relatives."""
    add_sizes(writer, config)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(rotary_dim_of(config))
    writer.add_vocab_size(config.vocab_size)
    if head_dim_of(config) * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    add_scaling_keys(writer, config)


def add_phi3_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    """Phi-3 states its window, 0 for none."""
    add_llama_keys(writer, config)
    writer.add_sliding_window(config.sliding_window or 0)


def add_neox_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    """The keys of llama.cpp's converter for GPT-NeoX, which has no word about the base."""
    add_sizes(writer, config)
    writer.add_rope_dimension_count(rotary_dim_of(config))
    writer.add_parallel_residual(config.use_parallel_residual)
    writer.add_layer_norm_eps(config.layer_norm_eps)


def add_gpt2_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    """The keys of llama.cpp's converter for GPT-2."""
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


@dataclass(frozen=True)
class Architecture:
    """What a file of one architecture is made with."""

    kind: gguf.MODEL_ARCH
    model_class: type
    # (config, transformers' name, values, back): into the file's layout, or back from it
    convert: Callable[[Config, str, np.ndarray, bool], np.ndarray]
    add_keys: Callable[[gguf.GGUFWriter, Config], None]

    @property
    def name(self) -> str:
        """As general.architecture spells it."""
        return gguf.MODEL_ARCH_NAMES[self.kind]


ARCH = gguf.MODEL_ARCH
ARCHITECTURES = {  # by model_type
    "llama": Architecture(ARCH.LLAMA, tf.LlamaForCausalLM, convert_llama, add_llama_keys),
    "mistral": Architecture(ARCH.LLAMA, tf.MistralForCausalLM, convert_llama, add_llama_keys),
    "qwen2": Architecture(ARCH.QWEN2, tf.Qwen2ForCausalLM, as_stored, add_llama_keys),
    "qwen3": Architecture(ARCH.QWEN3, tf.Qwen3ForCausalLM, as_stored, add_llama_keys),
    "smollm3": Architecture(ARCH.SMOLLM3, tf.SmolLM3ForCausalLM, convert_llama, add_llama_keys),
    "phi3": Architecture(ARCH.PHI3, tf.Phi3ForCausalLM, as_stored, add_phi3_keys),
    "gpt_neox": Architecture(ARCH.GPTNEOX, tf.GPTNeoXForCausalLM, convert_neox, add_neox_keys),
    "gpt2": Architecture(ARCH.GPT2, tf.GPT2LMHeadModel, convert_gpt2, add_gpt2_keys),
}
