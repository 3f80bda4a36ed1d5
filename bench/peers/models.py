"""The models that engines are compared on: GGUF files in several formats from one source."""

import hashlib
import pathlib

import gguf
import numpy as np

from workers import say

FORMATS = {"Q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0", "Q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0",
           "Q4_K_M": "LLAMA_FTYPE_MOSTLY_Q4_K_M"}
UNQUANTISED = {"F32", "F16", "BF16"}

# TinyLlama-1.1B's shape; a longer context, so that there is room to decode after 2048 tokens.
SHAPE = {"layers": 22, "width": 2048, "inner": 5632, "heads": 32, "kv_heads": 4, "vocab": 32000,
         "context": 4096}


def byte_tokens(vocab):
    """A vocabulary of single bytes and of names for the rest: enough for a file to be complete."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = [b for b in range(256) if b not in printable]
    characters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokens = [characters[b] for b in range(256)]
    return tokens + [f"<extra-{i}>" for i in range(vocab - len(tokens))]


def tensors_of(shape):
    """Names and shapes, slowest axis first, of a llama model's matrices."""
    width, inner, vocab = shape["width"], shape["inner"], shape["vocab"]
    kv_width = width // shape["heads"] * shape["kv_heads"]
    yield "token_embd.weight", (vocab, width)
    for layer in range(shape["layers"]):
        for name, size in (("attn_q", (width, width)), ("attn_k", (kv_width, width)),
                           ("attn_v", (kv_width, width)), ("attn_output", (width, width)),
                           ("ffn_gate", (inner, width)), ("ffn_up", (inner, width)),
                           ("ffn_down", (width, inner))):
            yield f"blk.{layer}.{name}.weight", size
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", (width,)
    yield "output_norm.weight", (width,)
    yield "output.weight", (vocab, width)


def write_random(path, shape, seed=1):
    """A random llama model in F16. Matrices are normal with deviation 0.02, as before training."""
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=True)
    writer.add_name(path.stem)
    writer.add_context_length(shape["context"])
    writer.add_embedding_length(shape["width"])
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(shape["inner"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_rope_dimension_count(shape["width"] // shape["heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape["vocab"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(byte_tokens(shape["vocab"]))
    writer.add_token_types([gguf.TokenType.NORMAL] * shape["vocab"])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(shape["vocab"] - 2)
    writer.add_eos_token_id(shape["vocab"] - 1)
    random = np.random.default_rng(seed)
    for name, size in tensors_of(shape):
        if len(size) == 1:
            writer.add_tensor(name, np.ones(size, dtype=np.float32))
        else:
            matrix = random.standard_normal(size, dtype=np.float32)
            writer.add_tensor(name, (matrix * np.float32(0.02)).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stored_types(path):
    """The types of a file's matrices."""
    return sorted({tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors
                   if len(tensor.shape) > 1})


def quantise(source, target, form, threads):
    """Has llama.cpp write a file in another format; in words what was done."""
    import llama_cpp  # pylint: disable=import-outside-toplevel  # it is there only now

    types = stored_types(source)
    again = not set(types) <= UNQUANTISED
    made_of = f"{'re-quantised from' if again else 'quantised from'} {', '.join(types)}"
    if target.exists():
        return made_of
    say(f"quantising {target.name}")
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread, params.ftype = threads, getattr(llama_cpp, FORMATS[form])
    params.allow_requantize = again
    made = target.with_name(target.name + ".part")
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(made).encode(), params)
    if status != 0:
        raise RuntimeError(f"llama_model_quantize: status {status} for {target.name}")
    made.rename(target)
    return made_of


def field(reader, key):
    return int(reader.get_field(key).contents())


def describe(path, name, form):
    """What results say of a file, and what a decode step must read of it."""
    reader = gguf.GGUFReader(path)
    names = {tensor.name for tensor in reader.tensors}
    # One row of the token table is read, unless the table is the output matrix too.
    read = sum(int(tensor.n_bytes) for tensor in reader.tensors
               if tensor.name != "token_embd.weight" or "output.weight" not in names)
    heads = field(reader, "llama.attention.head_count")
    head_dim = field(reader, "llama.embedding_length") // heads
    kv_width = field(reader, "llama.attention.head_count_kv") * head_dim
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": name, "format": form, "file": path.name, "sha256": digest,
            "file_bytes": path.stat().st_size, "read_bytes": read,
            # Keys and values of two bytes a number.
            "cache_bytes_per_token": 4 * field(reader, "llama.block_count") * kv_width,
            "context": field(reader, "llama.context_length"),
            "types": stored_types(path)}


def prepare(sources, random, folder, formats, threads):
    """Files of every source and format: [(path, description)]."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = [(pathlib.Path(source).stem.split(".")[0], pathlib.Path(source)) for source in sources]
    random_path = folder / "TinyLlama-1.1B-random.F16.gguf"
    if random:
        if not random_path.exists():
            say(f"writing {random_path.name}")
            made = random_path.with_name(random_path.name + ".part")
            write_random(made, SHAPE)
            made.rename(random_path)
        sources.append(("TinyLlama-1.1B-random", random_path))
    models = []
    for name, source in sources:
        for form in formats:
            path = folder / f"{name}.{form}.gguf"
            made_of = quantise(source, path, form, threads)
            models.append((path, describe(path, name, form) |
                           {"made": made_of, "random": source == random_path}))
    return models
