"""Tiny random GGUF files with llama.cpp's names and layouts, and the logits they must give.

  gguf/<name>.gguf
  gguf/<name>.golden.json, <name>.golden.safetensors   as in models.py

The logits come from transformers, run on the weights read back from the file and expanded by
gguf-py. Rows of llama's attn_q and attn_k are permuted per head as llama.cpp's converter does:
in the file, rotary pairs are neighbours (2i, 2i+1), not halves (i, i + head_dim / 2).
"""

import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers as tf
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

from golden import models
from golden.gguf_blocks import FORMATS, random_blocks

Arrays = dict[str, np.ndarray]

# Scales that give random blocks a standard deviation near 0.15 and a mean near 0.
K_SCALES = {"Q4_K": (8e-4, 6e-3), "Q5_K": (4e-4, 6e-3), "Q6_K": (1.1e-4,)}


@dataclass(frozen=True)
class GgufVariant:
    """One file; `seed_name` is shared by files that hold the same weights."""

    name: str
    seed_name: str
    config: tf.PretrainedConfig
    type_of: Callable[[str], Type]  # of a matrix; vectors and positions are always F32
    file_type: gguf.LlamaFileType
    lengths: tuple[int, ...] = (1, 7, 29)
    alignment: int = 32
    version: int = 3
    tokenizer: bool = False

    @property
    def is_llama(self) -> bool:
        """Llama or GPT-2."""
        return self.config.model_type == "llama"


# --- tensors, from transformers' layout to llama.cpp's and back --------------------------------


def gguf_name(variant: GgufVariant, name: str) -> str:
    """llama.cpp's name of a parameter."""
    arch = gguf.MODEL_ARCH.LLAMA if variant.is_llama else gguf.MODEL_ARCH.GPT2
    names = gguf.get_tensor_name_map(arch, variant.config.num_hidden_layers)
    return names.get_name(name, try_suffixes=(".weight", ".bias"))


def permute(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Halves to neighbours, per head: row (half, i) goes to row (i, half)."""
    head_dim = rows.shape[0] // n_heads
    return rows.reshape(n_heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def unpermute(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """The inverse of permute."""
    head_dim = rows.shape[0] // n_heads
    return rows.reshape(n_heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def convert(variant: GgufVariant, name: str, values: np.ndarray, back: bool) -> np.ndarray:
    """A parameter in the file's layout, or back from it; `name` is transformers' name."""
    if variant.is_llama:
        reorder = unpermute if back else permute
        if "q_proj" in name:
            return reorder(values, variant.config.num_attention_heads)
        if "k_proj" in name:
            return reorder(values, variant.config.num_key_value_heads)
    elif ".c_" in name and values.ndim == 2:  # Conv1D holds (in, out)
        return values.T
    return values


def rope_factors(config: tf.LlamaConfig) -> np.ndarray:
    """What llama.cpp divides each frequency by, (head_dim / 2), for llama3 scaling."""
    rope = config.rope_parameters
    wave = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, config.head_dim, 2) / config.head_dim)
    periods = rope["original_max_position_embeddings"] / wave
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((periods - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def file_tensors(variant: GgufVariant, model: tf.PreTrainedModel) -> Arrays:
    """Every tensor of the file by llama.cpp's name, float32."""
    tensors: Arrays = {}
    for name, parameter in model.named_parameters():  # a tied head appears once
        values = convert(variant, name, parameter.detach().numpy(), back=False)
        tensors[gguf_name(variant, name)] = np.ascontiguousarray(values)
    if variant.is_llama and variant.config.rope_parameters["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = rope_factors(variant.config)
    return tensors


# --- writing -----------------------------------------------------------------------------------


def encode(variant: GgufVariant, name: str, values: np.ndarray) -> tuple[np.ndarray, Type]:
    """The stored form of a tensor."""
    if values.ndim == 1 or name == "position_embd.weight":
        return values, Type.F32
    kind = variant.type_of(name)
    if kind.name not in K_SCALES:
        return gguf.quants.quantize(values, kind), kind
    # gguf-py cannot quantise to these: any blocks are as good as the random weights they replace.
    rng = models.rng_for(f"{variant.seed_name}/{name}/blocks")
    n_blocks = values.size // FORMATS[kind.name].n_values
    scales = [s * rng.uniform(0.7, 1.3, n_blocks) for s in K_SCALES[kind.name]]
    return random_blocks(rng, kind.name, scales).reshape(values.shape[0], -1), kind


def add_llama_keys(writer: gguf.GGUFWriter, config: tf.LlamaConfig) -> None:
    """The keys of llama.cpp's converter for Llama."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.rope_parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])


def add_gpt2_keys(writer: gguf.GGUFWriter, config: tf.GPT2Config) -> None:
    """The keys of llama.cpp's converter for GPT-2."""
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte: printable ones stand for themselves, the rest from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def tokenizer_tokens() -> list[str]:
    """Every byte, three merges, and the end of text."""
    return [*byte_letters(), "\u0120t", "he", "\u0120the", "<|endoftext|>"]


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """A byte-level BPE of 260 tokens."""
    tokens = tokenizer_tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["\u0120 t", "h e", "\u0120t he"])
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_eos_token_id(len(tokens) - 1)


def write_file(variant: GgufVariant, tensors: Arrays, path: Path) -> None:
    """The .gguf file."""
    writer = gguf.GGUFWriter(path, variant.config.model_type)
    if variant.alignment != writer.data_alignment:
        writer.add_custom_alignment(variant.alignment)
    writer.add_name(f"tiny random {variant.config.model_type}")
    (add_llama_keys if variant.is_llama else add_gpt2_keys)(writer, variant.config)
    writer.add_file_type(variant.file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if variant.tokenizer:
        add_tokenizer(writer)
    for name, values in tensors.items():
        data, kind = encode(variant, name, values)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with path.open("r+b") as file:  # versions 2 and 3 differ in this field alone
        file.seek(4)
        file.write(struct.pack("<I", variant.version))


# --- golden logits -----------------------------------------------------------------------------


def read_file(path: Path) -> Arrays:
    """Every tensor of a file, expanded to float32."""
    tensors: Arrays = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(np.ascontiguousarray(tensor.data), tensor.tensor_type)
        tensors[tensor.name] = values.reshape([int(n) for n in reversed(tensor.shape)])
    return tensors


@torch.no_grad()
def load_tensors(variant: GgufVariant, model: tf.PreTrainedModel, tensors: Arrays) -> None:
    """Overwrites every parameter with the file's; every tensor but rope_freqs must be used."""
    unused = set(tensors) - {"rope_freqs.weight"}
    for name, parameter in model.named_parameters():
        values = convert(variant, name, tensors[gguf_name(variant, name)], back=True)
        parameter.copy_(torch.from_numpy(np.array(values)))
        unused.remove(gguf_name(variant, name))
    assert not unused, unused


def make_file(variant: GgufVariant, root: Path) -> None:
    """Writes one .gguf file and its golden values."""
    model_class = tf.LlamaForCausalLM if variant.is_llama else tf.GPT2LMHeadModel
    shadow = models.Variant(variant.seed_name, model_class, variant.config, variant.lengths)
    model = models.build(shadow)
    path = root / f"{variant.name}.gguf"
    write_file(variant, file_tensors(variant, model), path)
    load_tensors(variant, model, read_file(path))

    prompts = models.prompts_of(shadow)
    golden = models.golden_tensors(shadow, model, prompts)
    save_file(golden, root / f"{variant.name}.golden.safetensors")
    cases = [{"ids": ids, "context": None} for ids in prompts]
    models.write_golden_json(
        root / f"{variant.name}.golden.json", model_class.__name__, "logits", cases
    )


# --- the files ---------------------------------------------------------------------------------


def llama_config(**options) -> tf.LlamaConfig:
    """Rows of 32 and 64 values, so that blocks of 32 fit."""
    settings = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    settings |= dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    settings |= dict(rms_norm_eps=1e-3, tie_word_embeddings=True)
    return tf.LlamaConfig(**(settings | options))


def gpt2_config(**options) -> tf.GPT2Config:
    """Rows of 32 and 128 values."""
    settings = dict(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    settings |= dict(bos_token_id=None, eos_token_id=None)
    return tf.GPT2Config(**(settings | options))


def mixed_type(name: str) -> Type:
    """Every type in one file; ffn_down has rows of 256 values, as blocks of 256 need."""
    if name == "token_embd.weight":
        return Type.Q8_0
    layer, tensor = int(name.split(".")[1]), name.split(".")[2]
    by_layer = {
        "ffn_down": (Type.Q4_K, Type.Q5_K, Type.Q6_K),
        "ffn_up": (Type.F16, Type.BF16, Type.Q4_0),
        "ffn_gate": (Type.Q4_1, Type.Q5_0, Type.Q5_1),
        "attn_q": (Type.Q4_0, Type.Q4_1, Type.F32),
        "attn_k": (Type.Q5_1, Type.Q8_0, Type.Q5_0),
    }
    return by_layer.get(tensor, (Type.Q5_0, Type.Q8_0, Type.F16))[layer]


def gguf_variants() -> list[GgufVariant]:
    """All files."""
    file_type = gguf.LlamaFileType
    llama = llama_config()
    linear = models.rope("linear", 5000.0, factor=2.0)
    llama3 = models.rope("llama3", 500.0, **models.LLAMA3_ROPE)
    return [
        GgufVariant("llama-f32", "gguf-llama", llama, lambda _: Type.F32, file_type.ALL_F32),
        GgufVariant("llama-f16", "gguf-llama", llama, lambda _: Type.F16, file_type.MOSTLY_F16),
        GgufVariant(
            "llama-f16-v2",
            "gguf-llama",
            llama,
            lambda _: Type.F16,
            file_type.MOSTLY_F16,
            version=2,
        ),
        GgufVariant("llama-q8_0", "gguf-llama", llama, lambda _: Type.Q8_0, file_type.MOSTLY_Q8_0),
        GgufVariant(
            "llama-linear",
            "gguf-llama-linear",
            llama_config(rope_parameters=linear),
            lambda _: Type.Q8_0,
            file_type.MOSTLY_Q8_0,
        ),
        GgufVariant(
            "llama-ropefreqs",  # and an untied head
            "gguf-llama-ropefreqs",
            llama_config(num_attention_heads=2, rope_parameters=llama3, tie_word_embeddings=False),
            lambda _: Type.F16,
            file_type.MOSTLY_F16,
            lengths=(1, 7, 37),
        ),
        GgufVariant(
            "llama-mixed",  # and head_dim != d_model / n_heads, and an unusual alignment
            "gguf-llama-mixed",
            llama_config(num_hidden_layers=3, intermediate_size=256, head_dim=16),
            mixed_type,
            file_type.MOSTLY_Q4_K_M,
            alignment=64,
        ),
        GgufVariant(
            "gpt2-f32",
            "gguf-gpt2",
            gpt2_config(vocab_size=len(tokenizer_tokens())),
            lambda _: Type.F32,
            file_type.ALL_F32,
            lengths=(1, 7, 19),
            tokenizer=True,
        ),
        GgufVariant(
            "gpt2-q4_0", "gguf-gpt2-q4_0", gpt2_config(), lambda _: Type.Q4_0, file_type.MOSTLY_Q4_0
        ),
    ]


def make(out_dir: Path) -> None:
    """Writes the files under out_dir/gguf."""
    torch.set_num_threads(1)
    tf.logging.set_verbosity_error()
    root = out_dir / "gguf"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for item in gguf_variants():
        make_file(item, root)
        print(f"gguf/{item.name}: written", flush=True)
