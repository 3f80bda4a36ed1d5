"""Tiny random GGUF files with llama.cpp's names and layouts, and the logits they must give.

  gguf/<name>.gguf
  gguf/<name>.golden.json, <name>.golden.safetensors   as in models.py

The logits come from transformers, run on the weights read back from the file and expanded by
gguf-py; gguf_architectures.py has the layouts.
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

from golden import decoders, gemma, models
from golden.gguf_architectures import ARCHITECTURES, Architecture, Arrays, rope_tensors
from golden.gguf_blocks import FORMATS, random_blocks

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
    prepare: Callable[[tf.PreTrainedModel], None] | None = None  # as models.Variant has it

    @property
    def architecture(self) -> Architecture:
        """Its layout."""
        return (ARCHITECTURES | gemma.GEMMA_ARCHITECTURES)[self.config.model_type]

    @property
    def context_is_length(self) -> bool:
        """Whether frequencies depend on the context."""
        rope = getattr(self.config, "rope_parameters", None) or {}
        return rope.get("rope_type") == "longrope"


# --- tensors, from transformers' layout to llama.cpp's and back --------------------------------


def gguf_name(variant: GgufVariant, name: str) -> str:
    """llama.cpp's name of a parameter."""
    names = gguf.get_tensor_name_map(variant.architecture.kind, variant.config.num_hidden_layers)
    return names.get_name(name, try_suffixes=(".weight", ".bias"))


def file_tensors(variant: GgufVariant, model: tf.PreTrainedModel) -> Arrays:
    """Every tensor of the file by llama.cpp's name, float32."""
    tensors: Arrays = {}
    for name, parameter in model.named_parameters():  # a tied head appears once
        values = variant.architecture.convert(
            variant.config, name, parameter.detach().numpy(), False
        )
        tensors[gguf_name(variant, name)] = np.ascontiguousarray(values)
    return tensors | rope_tensors(variant.config)


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
    writer = gguf.GGUFWriter(path, variant.architecture.name)
    if variant.alignment != writer.data_alignment:
        writer.add_custom_alignment(variant.alignment)
    writer.add_name(f"tiny random {variant.config.model_type}")
    variant.architecture.add_keys(writer, variant.config)
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
    """Overwrites every parameter with the file's; all tensors but those of rope must be used."""
    unused = set(tensors) - set(rope_tensors(variant.config))
    for name, parameter in model.named_parameters():
        stored = tensors[gguf_name(variant, name)]
        values = variant.architecture.convert(variant.config, name, stored, True)
        parameter.copy_(torch.from_numpy(np.array(values)))
        unused.remove(gguf_name(variant, name))
    assert not unused, unused


def make_file(variant: GgufVariant, root: Path) -> None:
    """Writes one .gguf file and its golden values."""
    model_class = variant.architecture.model_class
    shadow = models.Variant(
        variant.seed_name, model_class, variant.config, variant.lengths, prepare=variant.prepare
    )
    model = models.build(shadow)
    path = root / f"{variant.name}.gguf"
    write_file(variant, file_tensors(variant, model), path)
    load_tensors(variant, model, read_file(path))

    prompts = models.prompts_of(shadow)
    golden = models.golden_tensors(shadow, model, prompts)
    save_file(golden, root / f"{variant.name}.golden.safetensors")
    cases = [
        {"ids": ids, "context": len(ids) if variant.context_is_length else None} for ids in prompts
    ]
    models.write_golden_json(
        root / f"{variant.name}.golden.json", model_class.__name__, "logits", cases
    )


# --- the files ---------------------------------------------------------------------------------


def llama_settings() -> dict:
    """Rows of 32 and 64 values, so that blocks of 32 fit."""
    settings = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    settings |= dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    return settings | dict(rms_norm_eps=1e-3, tie_word_embeddings=True)


def llama_config(**options) -> tf.LlamaConfig:
    """A Llama of these sizes."""
    return tf.LlamaConfig(**(llama_settings() | options))


def gpt2_config(**options) -> tf.GPT2Config:
    """Rows of 32 and 128 values."""
    settings = dict(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    settings |= dict(bos_token_id=None, eos_token_id=None)
    return tf.GPT2Config(**(settings | options))


def decoder_config(config_class: type, **options) -> tf.PretrainedConfig:
    """One of Llama's relatives in the same sizes."""
    ends = dict(pad_token_id=None, bos_token_id=None, eos_token_id=None)
    return config_class(**(llama_settings() | ends | options))


def neox_config(**options) -> tf.GPTNeoXConfig:
    """Rows of 32 and 64 values; the base is the one that llama.cpp takes without a key."""
    settings = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    settings |= dict(num_attention_heads=2, max_position_embeddings=64, layer_norm_eps=1e-3)
    part = options.pop("part")
    rope = models.rope("default", 10000.0, partial_rotary_factor=part)
    return tf.GPTNeoXConfig(**(settings | options | dict(rope_parameters=rope)))


def decoder_files() -> list[GgufVariant]:
    """Llama's relatives, Gemma and GPT-NeoX."""
    types = gguf.LlamaFileType

    def f32(name: str, config: tf.PretrainedConfig, **options) -> GgufVariant:
        kind = lambda _: Type.F32  # noqa: E731
        return GgufVariant(name, f"gguf-{name}", config, kind, types.ALL_F32, **options)

    def f16(name: str, config: tf.PretrainedConfig, **options) -> GgufVariant:
        kind = lambda _: Type.F16  # noqa: E731
        return GgufVariant(name, f"gguf-{name}", config, kind, types.MOSTLY_F16, **options)

    def q8_0(name: str, config: tf.PretrainedConfig, **options) -> GgufVariant:
        kind = lambda _: Type.Q8_0  # noqa: E731
        return GgufVariant(name, f"gguf-{name}", config, kind, types.MOSTLY_Q8_0, **options)

    yarn = models.rope("yarn", 1000.0, **decoders.YARN)
    lengths = decoders.SHORT_AND_LONG
    phi3 = dict(original_max_position_embeddings=16)
    partial = decoders.long_rope(12, partial_rotary_factor=0.75, attention_factor=1.3)
    two_heads = dict(num_attention_heads=2, num_key_value_heads=1)
    untied = dict(tie_word_embeddings=False)
    return [
        q8_0("mistral-q8_0", decoder_config(tf.MistralConfig, sliding_window=None, **untied)),
        f16("qwen2-f16", decoder_config(tf.Qwen2Config)),
        q8_0(
            "qwen2-yarn-q8_0",
            decoder_config(tf.Qwen2Config, rope_parameters=yarn, **two_heads),
            lengths=lengths,
        ),
        f16("qwen3-f16", decoder_config(tf.Qwen3Config, head_dim=12)),
        q8_0(
            "qwen3-yarn-q8_0",
            decoder_config(
                tf.Qwen3Config,
                head_dim=16,
                rope_parameters=yarn | dict(attention_factor=0.8),
                **untied,
            ),
            lengths=lengths,
        ),
        f16("smollm3-f16", decoder_config(tf.SmolLM3Config, num_hidden_layers=5)),
        q8_0("phi3-q8_0", decoder_config(tf.Phi3Config, sliding_window=8)),
        f32(
            "phi3-longrope-f32",
            decoder_config(tf.Phi3Config, rope_parameters=decoders.long_rope(8), **phi3),
            lengths=lengths,
        ),
        f16(
            "phi3-partial-f16",
            decoder_config(tf.Phi3Config, rope_parameters=partial, **two_heads, **untied, **phi3),
            lengths=lengths,
        ),
        f32("gemma2-f32", gemma.gguf_gemma2(), prepare=gemma.take_one_from_norms),
        f16(
            "gemma2-largest-f16",
            gemma.largest_gemma2(),
            lengths=(1, 19),
            prepare=gemma.quiet_layers,
        ),
        q8_0("gemma3-q8_0", gemma.gguf_gemma3(), prepare=gemma.take_one_from_norms),
        f16("gptneox-f16", neox_config(part=0.25)),
        q8_0(
            "gptneox-sequential-q8_0",
            neox_config(part=1.0, use_parallel_residual=False, tie_word_embeddings=True),
        ),
    ]


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
    for item in gguf_variants() + decoder_files():
        make_file(item, root)
        print(f"gguf/{item.name}: written", flush=True)
