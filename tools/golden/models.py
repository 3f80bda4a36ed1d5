"""Tiny random checkpoints of every family and variant, with the logits transformers gives.

Each folder models/<name> holds config.json, model.safetensors (or shards), and

  golden.json         {"model_class", "output", "cases": [{"ids": [...], "context": N or null}]}
  golden.safetensors  "<output>.<case>" float32 (n_tokens, vocab or d_model)

`output` is "logits", or "hidden" (the last hidden state) for a checkpoint without a head. A
`context` fixes the base of dynamic rotary scaling; null means that it has no influence.
Float32, CPU, one thread, eager attention, no attention mask, token types all 0.
"""

import copy
import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]

VOCAB = 64
LENGTHS = (1, 2, 7, 19, 37)
FEW_LENGTHS = (2, 23)

# Round-off of a float32 run against a float64 run of the same model, relative to the logit range.
# The C++ tolerance is 2e-5, so the golden values themselves must be far better than that.
MAX_ROUND_OFF = 2e-6

# The usual 1e-5 and 1e-12 move the logits less than the C++ tolerance; one variant of each family
# has an epsilon that shows.
VISIBLE_EPS = 1e-3


@dataclass(frozen=True)
class Variant:
    """One checkpoint folder."""

    name: str
    model_class: type
    config: tf.PretrainedConfig
    lengths: tuple[int, ...] = LENGTHS
    prompts: tuple[tuple[int, ...], ...] = ()  # instead of random prompts of `lengths`
    output: str = "logits"
    storage: torch.dtype = torch.float32
    max_shard_size: str = "1GB"
    context_is_length: bool = False  # dynamic rotary scaling
    bf16_run: bool = False
    prepare: Callable[[tf.PreTrainedModel], None] | None = None  # before saving and running
    edit_config: Callable[[dict], None] | None = None  # another spelling of the same thing
    edit_tensors: Callable[[Tensors], Tensors] | None = None


# --- weights and prompts ---------------------------------------------------------------------


def rng_for(name: str) -> np.random.Generator:
    """A random stream that depends on the name only."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def init_parameter(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Values large enough that leaving any parameter out changes the logits."""
    normal = rng.standard_normal(shape)
    if "position" in name or "wpe" in name or "token_type" in name:
        return 0.3 * normal
    if "embed" in name and len(shape) == 2 or "wte" in name:
        return 0.6 * normal
    if len(shape) == 2:
        return 0.2 * normal
    if name.endswith("weight"):  # of a norm
        return 1.0 + 0.1 * normal
    return 0.1 * normal


@torch.no_grad()
def init_weights(model: tf.PreTrainedModel, seed_name: str) -> None:
    """Overwrites every parameter, padding rows included."""
    for name, parameter in model.named_parameters():
        values = init_parameter(name, tuple(parameter.shape), rng_for(f"{seed_name}/{name}"))
        parameter.copy_(torch.from_numpy(values))


def build(variant: Variant) -> tf.PreTrainedModel:
    """The model with the weights that the file will hold, in float32."""
    variant.config._attn_implementation = "eager"
    model = variant.model_class(variant.config).eval()
    init_weights(model, variant.name)
    model.to(variant.storage).float()  # rounds to what the file can hold
    if variant.prepare:
        variant.prepare(model)
    return model


def prompts_of(variant: Variant) -> list[list[int]]:
    """The prompts; the longest random one holds the first and the last id."""
    if variant.prompts:
        return [list(prompt) for prompt in variant.prompts]
    rng = rng_for(f"{variant.name}/prompts")
    prompts = [rng.integers(0, variant.config.vocab_size, n).tolist() for n in variant.lengths]
    prompts[-1][1], prompts[-1][-2] = 0, variant.config.vocab_size - 1
    return prompts


# --- running ---------------------------------------------------------------------------------


@torch.no_grad()
def run(model: tf.PreTrainedModel, ids: list[int], dtype=torch.float32) -> np.ndarray:
    """Logits (n_tokens, vocab), or hidden states (n_tokens, d_model) of a model without head."""
    # A copy, because dynamic rotary scaling remembers the longest prompt it has seen.
    model = copy.deepcopy(model).to(dtype)
    result = model(torch.tensor([ids]), use_cache=False)
    values = result.logits if "logits" in result else result.last_hidden_state
    return values[0].to(torch.float64 if dtype == torch.float64 else torch.float32).numpy()


def check_sane(name: str, model: tf.PreTrainedModel, ids: list[int], values: np.ndarray) -> None:
    """Refuses degenerate logits and badly conditioned models."""
    spread = float(values.max() - values.min())
    assert np.isfinite(values).all(), f"{name}: not finite"
    assert 2.0 < spread < 40.0 and values.std() > 0.4, f"{name}: range {spread}"
    round_off = np.abs(run(model, ids, torch.float64) - values).max() / spread
    assert round_off < MAX_ROUND_OFF, f"{name}: float32 round-off {round_off}"


def golden_tensors(
    variant: Variant, model: tf.PreTrainedModel, prompts: list[list[int]]
) -> Tensors:
    """Every golden tensor of a folder."""
    tensors: Tensors = {}
    for i, ids in enumerate(prompts):
        values = run(model, ids)
        check_sane(variant.name, model, ids, values)
        tensors[f"{variant.output}.{i}"] = torch.from_numpy(values.copy())
        if variant.bf16_run:
            bf16 = run(model, ids, torch.bfloat16)
            tensors[f"bf16_{variant.output}.{i}"] = torch.from_numpy(bf16.copy())
    return tensors


def write_golden_json(path: Path, model_class: str, output: str, cases: list[dict]) -> None:
    """One case per line, so that a diff stays readable."""
    lines = ",\n".join("    " + json.dumps(case) for case in cases)
    path.write_text(
        f'{{\n  "model_class": "{model_class}",\n  "output": "{output}",\n'
        f'  "cases": [\n{lines}\n  ]\n}}\n'
    )


# --- saving ----------------------------------------------------------------------------------


def save_checkpoint(variant: Variant, model: tf.PreTrainedModel, folder: Path) -> None:
    """config.json and weights, then the edits that give them another spelling."""
    stored = copy.deepcopy(model).to(variant.storage)
    stored.save_pretrained(folder, max_shard_size=variant.max_shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if variant.edit_config:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        variant.edit_config(config)
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if variant.edit_tensors:
        path = folder / "model.safetensors"
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
        save_file(variant.edit_tensors(tensors), path, metadata={"format": "pt"})


def reload(folder: Path) -> tf.PreTrainedModel:
    """The folder as a user would load it."""
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    auto = tf.AutoModel
    if architecture.endswith("ForMaskedLM"):
        auto = tf.AutoModelForMaskedLM
    elif architecture.endswith(("ForCausalLM", "LMHeadModel")):
        auto = tf.AutoModelForCausalLM
    elif architecture.endswith("ForConditionalGeneration"):
        auto = tf.AutoModelForImageTextToText
    return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def check_folder(folder: Path) -> None:
    """The saved folder, read back, gives exactly the golden values and names no local path."""
    text = (folder / "config.json").read_text()
    assert "_name_or_path" not in text and str(folder.parent) not in text, folder
    golden = json.loads((folder / "golden.json").read_text())
    expected = load_file(folder / "golden.safetensors")
    model = reload(folder)
    for i, case in enumerate(golden["cases"]):
        want = expected[f"{golden['output']}.{i}"].numpy()
        got = run(model, case["ids"])
        assert np.array_equal(got, want), f"{folder.name}: {np.abs(got - want).max()}"


def make_folder(variant: Variant, folder: Path) -> None:
    """Writes and checks one folder."""
    model = build(variant)
    prompts = prompts_of(variant)
    save_checkpoint(variant, model, folder)
    save_file(golden_tensors(variant, model, prompts), folder / "golden.safetensors")
    cases = [
        {"ids": ids, "context": len(ids) if variant.context_is_length else None} for ids in prompts
    ]
    write_golden_json(folder / "golden.json", variant.model_class.__name__, variant.output, cases)
    check_folder(folder)


# --- spellings found in published checkpoints ------------------------------------------------


def old_rope_config(config: dict) -> None:
    """As before transformers 5: rope_theta and rope_scaling on top, torch_dtype, no head_dim."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config.pop("head_dim", None)
    config["transformers_version"] = "4.40.0"


def oldest_rope_config(config: dict) -> None:
    """As in 2023: the kind of scaling is called "type", and defaults are left out."""
    old_rope_config(config)
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    for key in ("attention_bias", "mlp_bias", "tie_word_embeddings", "num_key_value_heads"):
        del config[key]


def old_qwen2_config(config: dict) -> None:
    """Layers with a window are given by max_window_layers alone."""
    old_rope_config(config)
    del config["layer_types"]


def hub_gpt2_config(config: dict) -> None:
    """The keys of the first published GPT-2: n_ctx, and no word about tying."""
    config["n_ctx"] = config["n_positions"]
    for key in ("tie_word_embeddings", "n_inner", "dtype", "scale_attn_weights", "pad_token_id"):
        del config[key]
    for key in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
        del config[key]


def hub_gpt2_tensors(tensors: Tensors) -> Tensors:
    """No "transformer." prefix, and the causal mask stored as h.N.attn.bias."""
    n_positions = tensors["transformer.wpe.weight"].shape[0]
    mask = torch.ones(n_positions, n_positions).tril().reshape(1, 1, n_positions, n_positions)
    result = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    n_layers = 1 + max(int(name.split(".")[1]) for name in result if name.startswith("h."))
    return result | {f"h.{i}.attn.bias": mask.clone() for i in range(n_layers)}


def hub_bert_tensors(tensors: Tensors) -> Tensors:
    """gamma and beta, stored position ids, and the pre-training heads nobody reads."""
    d_model = tensors["bert.embeddings.word_embeddings.weight"].shape[1]
    n_positions = tensors["bert.embeddings.position_embeddings.weight"].shape[0]
    result = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    result["bert.embeddings.position_ids"] = torch.arange(n_positions).reshape(1, -1)
    result["bert.pooler.dense.weight"] = torch.full((d_model, d_model), 7.0)
    result["bert.pooler.dense.bias"] = torch.full((d_model,), 7.0)
    result["cls.seq_relationship.weight"] = torch.full((2, d_model), 7.0)
    result["cls.seq_relationship.bias"] = torch.full((2,), 7.0)
    return result


@torch.no_grad()
def shrink_opt_input(model: tf.PreTrainedModel) -> None:
    """Variance 1e-4 at the first norm, so that OPT's epsilon (1e-5, in no config) shows."""
    model.model.decoder.project_in.weight.mul_(0.02)
    model.model.decoder.embed_positions.weight.mul_(0.02)
    model.model.decoder.project_out.weight.mul_(0.4)  # no norm keeps the logits in range


def round_esm_frequencies(model: tf.PreTrainedModel) -> None:
    """Older ESM-2 files may hold rotary frequencies that went through float16."""
    frequencies = model.esm.rotary_embeddings.inv_freq
    frequencies.copy_(frequencies.half().float())


def hub_esm_tensors(tensors: Tensors) -> Tensors:
    """weight and bias instead of gamma and beta, frequencies per layer, unused positions."""
    result: Tensors = {}
    for name, tensor in tensors.items():
        if name.endswith("inv_freq"):
            for i in (0, 1):
                layer = f"esm.encoder.layer.{i}.attention.self.rotary_embeddings.inv_freq"
                result[layer] = tensor.clone()
            continue
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        result[name.replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
    d_model = tensors["esm.embeddings.word_embeddings.weight"].shape[1]
    result["esm.embeddings.position_embeddings.weight"] = torch.full((64, d_model), 7.0)
    result["esm.embeddings.position_ids"] = torch.arange(64).reshape(1, -1)
    return result


# --- the variants ----------------------------------------------------------------------------


def gpt2(name: str, **options) -> Variant:
    """A GPT-2 of d_model 32; options that GPT2Config does not know go to Variant."""
    settings = dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=40)
    settings |= dict(bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1)
    return variant(name, tf.GPT2LMHeadModel, tf.GPT2Config, settings, options)


def gptj(name: str, **options) -> Variant:
    """A GPT-J of d_model 32, head_dim 16."""
    settings = dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, n_positions=40)
    settings |= dict(bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1)
    return variant(name, tf.GPTJForCausalLM, tf.GPTJConfig, settings, options)


def opt(name: str, **options) -> Variant:
    """An OPT of d_model 32."""
    settings = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    settings |= dict(ffn_dim=56, max_position_embeddings=40)
    return variant(name, tf.OPTForCausalLM, tf.OPTConfig, settings, options)


def llama_settings() -> dict:
    """Common to llama, mistral and qwen2."""
    settings = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    return settings | dict(intermediate_size=44, max_position_embeddings=64)


def llama(name: str, **options) -> Variant:
    """A Llama of d_model 32."""
    return variant(name, tf.LlamaForCausalLM, tf.LlamaConfig, llama_settings(), options)


def mistral(name: str, **options) -> Variant:
    """A Mistral of d_model 32 with two key-value heads."""
    settings = llama_settings() | dict(num_key_value_heads=2)
    return variant(name, tf.MistralForCausalLM, tf.MistralConfig, settings, options)


def qwen2(name: str, **options) -> Variant:
    """A Qwen2 of d_model 32 with two key-value heads."""
    settings = llama_settings() | dict(num_key_value_heads=2)
    return variant(name, tf.Qwen2ForCausalLM, tf.Qwen2Config, settings, options)


def bert(name: str, model_class: type = tf.BertForMaskedLM, **options) -> Variant:
    """A BERT of d_model 32."""
    settings = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    settings |= dict(intermediate_size=56, max_position_embeddings=40)
    return variant(name, model_class, tf.BertConfig, settings, options)


# ESM's alphabet: 0 <cls>, 1 <pad>, 2 <eos>, 4-28 letters, 32 <mask>.
ESM_PROMPTS = (
    (0, 20, 2),
    (0, 20, 4, 11, 15, 8, 2),
    (0, 20, 32, 11, 15, 32, 32, 9, 17, 5, 22, 2),
    (0, *(4 + (5 * i * i + 3 * i) % 25 for i in range(35)), 2),
    (0, 7, 9, *(4 + (7 * i * i + i) % 25 for i in range(20)), 32, 12, 2),
)


def esm(name: str, **options) -> Variant:
    """An ESM of d_model 32, with masked positions in two of its prompts."""
    settings = dict(vocab_size=33, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    settings |= dict(intermediate_size=56, max_position_embeddings=64, pad_token_id=1)
    settings |= dict(mask_token_id=32, layer_norm_eps=1e-5)
    options = dict(prompts=ESM_PROMPTS) | options
    return variant(name, tf.EsmForMaskedLM, tf.EsmConfig, settings, options)


def variant(
    name: str, model_class: type, config_class: type, settings: dict, options: dict
) -> Variant:
    """Splits options between Variant's fields and the configuration."""
    fields = {key: value for key, value in options.items() if key in Variant.__annotations__}
    rest = {key: value for key, value in options.items() if key not in fields}
    config = config_class(**(settings | rest))
    return Variant(name, model_class, config, **fields)


def rope(kind: str, theta: float, **parameters: float) -> dict:
    """The `rope_parameters` of transformers 5."""
    return dict(rope_type=kind, rope_theta=theta, **parameters)


# Wave lengths are 6.3, 13.7, 29.7 and more: one kept, two blended, the rest divided by 4.
LLAMA3_ROPE = dict(
    factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)


def gpt_variants() -> list[Variant]:
    """GPT-2, GPT-J and OPT."""
    return [
        gpt2("gpt2", n_head=2, lengths=(1, 2, 7, 19, 40), bf16_run=True),
        gpt2(
            "gpt2-inner",
            n_inner=44,
            activation_function="gelu",
            scale_attn_by_inverse_layer_idx=True,
            n_layer=3,
            layer_norm_epsilon=VISIBLE_EPS,
        ),
        gpt2("gpt2-noscale", n_inner=48, scale_attn_weights=False, lengths=FEW_LENGTHS),
        gpt2("gpt2-untied", n_inner=48, tie_word_embeddings=False, lengths=FEW_LENGTHS),
        gpt2("gpt2-bf16", storage=torch.bfloat16, lengths=FEW_LENGTHS),
        gpt2("gpt2-f16", storage=torch.float16, lengths=FEW_LENGTHS),
        gpt2("gpt2-sharded", n_inner=48, max_shard_size="25KB", lengths=FEW_LENGTHS),
        gpt2(
            "gpt2-hub",
            lengths=FEW_LENGTHS,
            edit_config=hub_gpt2_config,
            edit_tensors=hub_gpt2_tensors,
        ),
        gptj("gptj", rotary_dim=8),
        gptj(
            "gptj-tied",
            rotary_dim=4,
            n_inner=48,
            tie_word_embeddings=True,
            layer_norm_epsilon=VISIBLE_EPS,
            lengths=FEW_LENGTHS,
        ),
        gptj("gptj-fullrot", rotary_dim=16, n_inner=48),
        opt("opt", lengths=(1, 2, 7, 19, 40)),
        opt("opt-350m-like", do_layer_norm_before=False, word_embed_proj_dim=20),
        opt("opt-nobias", enable_bias=False, layer_norm_elementwise_affine=False),
        opt(
            "opt-nofinalnorm",
            _remove_final_layer_norm=True,
            word_embed_proj_dim=20,
            lengths=FEW_LENGTHS,
            prepare=shrink_opt_input,
        ),
    ]


def llama_variants() -> list[Variant]:
    """Llama, Mistral and Qwen2."""
    return [
        llama("llama", bf16_run=True),
        llama(
            "llama-gqa-tied",
            num_key_value_heads=2,
            tie_word_embeddings=True,
            num_hidden_layers=3,
            rms_norm_eps=VISIBLE_EPS,
            edit_config=old_rope_config,
        ),
        llama("llama-headdim", num_key_value_heads=1, head_dim=12),
        llama("llama-bias", attention_bias=True, mlp_bias=True),
        llama("llama-linear", rope_parameters=rope("linear", 5000.0, factor=2.0)),
        llama(
            "llama-linear-old",
            rope_parameters=rope("linear", 5000.0, factor=2.5),
            lengths=FEW_LENGTHS,
            edit_config=oldest_rope_config,
        ),
        llama(
            "llama-dynamic",
            rope_parameters=rope("dynamic", 5000.0, factor=2.0),
            max_position_embeddings=16,
            lengths=(7, 16, 23, 37),
            context_is_length=True,
        ),
        llama(
            "llama-dynamic-old",
            rope_parameters=rope("dynamic", 5000.0, factor=3.0),
            max_position_embeddings=16,
            lengths=(5, 29),
            context_is_length=True,
            edit_config=oldest_rope_config,
        ),
        llama(
            "llama-llama3",
            num_attention_heads=2,
            num_key_value_heads=1,
            rope_parameters=rope("llama3", 500.0, **LLAMA3_ROPE),
        ),
        llama(
            "llama-llama3-old",
            num_attention_heads=2,
            num_key_value_heads=1,
            rope_parameters=rope("llama3", 500.0, **LLAMA3_ROPE),
            lengths=FEW_LENGTHS,
            edit_config=old_rope_config,
        ),
        mistral("mistral", sliding_window=8, rope_parameters=rope("default", 1000.0)),
        mistral(
            "mistral-nowindow",
            sliding_window=None,
            rms_norm_eps=VISIBLE_EPS,
            edit_config=old_rope_config,
        ),
        qwen2("qwen2", tie_word_embeddings=True, edit_config=old_qwen2_config),
        qwen2(
            "qwen2-untied",
            rope_parameters=rope("default", 1e6),
            rms_norm_eps=VISIBLE_EPS,
            lengths=FEW_LENGTHS,
        ),
        qwen2(
            "qwen2-window",
            num_hidden_layers=3,
            use_sliding_window=True,
            sliding_window=8,
            max_window_layers=1,
            tie_word_embeddings=True,
        ),
        qwen2(
            "qwen2-window-old",
            use_sliding_window=True,
            sliding_window=6,
            max_window_layers=1,
            tie_word_embeddings=True,
            lengths=FEW_LENGTHS,
            edit_config=old_qwen2_config,
        ),
    ]


def encoder_variants() -> list[Variant]:
    """BERT and ESM."""
    return [
        bert("bert", lengths=(1, 2, 7, 19, 40)),
        bert(
            "bert-gelunew", hidden_act="gelu_new", layer_norm_eps=VISIBLE_EPS, lengths=FEW_LENGTHS
        ),
        bert("bert-untied", tie_word_embeddings=False, lengths=FEW_LENGTHS),
        bert("bert-nohead", model_class=tf.BertModel, output="hidden"),
        bert("bert-hub", lengths=FEW_LENGTHS, edit_tensors=hub_bert_tensors),
        esm(
            "esm",
            position_embedding_type="rotary",
            token_dropout=True,
            emb_layer_norm_before=False,
        ),
        esm(
            "esm-hub",
            position_embedding_type="rotary",
            token_dropout=True,
            emb_layer_norm_before=False,
            prompts=ESM_PROMPTS[2:4],
            prepare=round_esm_frequencies,
            edit_tensors=hub_esm_tensors,
        ),
        esm(
            "esm-absolute",
            emb_layer_norm_before=True,
            token_dropout=False,
            layer_norm_eps=VISIBLE_EPS,
        ),
    ]


def make(out_dir: Path) -> None:
    """Writes every folder under out_dir/models."""
    torch.set_num_threads(1)
    tf.logging.set_verbosity_error()
    tf.logging.disable_progress_bar()
    root = out_dir / "models"
    shutil.rmtree(root, ignore_errors=True)
    from golden import decoders, gemma  # which are made of what is defined here

    variants = gpt_variants() + llama_variants() + encoder_variants()
    variants += decoders.qwen_variants() + decoders.other_variants() + gemma.gemma_variants()
    for item in variants:
        make_folder(item, root / item.name)
        print(f"models/{item.name}: reloads with equal logits", flush=True)
