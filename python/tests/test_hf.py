"""Attention inside models of transformers: tiny random ones, with delta 0 the same logits."""

import copy
import gc
import os
import pathlib
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import sluice  # noqa: E402
from sluice import hf  # noqa: E402
from sluice.hf import _enable  # noqa: E402

# A model on a GPU is served by a package that was built with CUDA.
try:
    sluice.AttentionDevice("cuda", "bf16", stream=0)
    NO_CUDA = "" if torch.cuda.is_available() else "torch has no CUDA device"
except sluice.Error as error:
    NO_CUDA = error.message
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(bool(NO_CUDA), reason=NO_CUDA))]
# Float32 sums in another order, as a share of the range of the logits: docs/architecture.md, "Numbers".
ROUND_OFF = 2e-5
VOCAB = 97
SMALL = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
             num_attention_heads=4, max_position_embeddings=2048, bos_token_id=0, eos_token_id=None,
             pad_token_id=1, initializer_range=0.2)
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL, num_key_value_heads=2),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL, num_key_value_heads=1),
    "mistral": lambda: transformers.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=None),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_positions=2048, bos_token_id=0,
        eos_token_id=None, pad_token_id=1, initializer_range=0.2),
    "opt": lambda: transformers.OPTConfig(
        vocab_size=VOCAB, hidden_size=64, word_embed_proj_dim=64, ffn_dim=96, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=2048, bos_token_id=0, eos_token_id=None,
        pad_token_id=1, init_std=0.2),
}


def make(name, **changes):
    torch.manual_seed(3)
    config = CONFIGS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(params=sorted(CONFIGS))
def model(request, device):
    return make(request.param).to(device)


def tokens(n, batch=1, seed=5):
    return torch.from_numpy(np.random.default_rng(seed).integers(2, VOCAB, (batch, n)))


def assert_close(found, expected, share=ROUND_OFF):
    assert found.shape == expected.shape
    worst = (found - expected).abs().max().item()
    assert worst <= share * (expected.max() - expected.min()).item()


def logits(model, ids, **more):
    with torch.no_grad():
        return model(ids, **more).logits


@pytest.fixture(autouse=True)
def no_fallback(request):
    """A test that does not expect a fallback fails where there is one."""
    if "falls_back" in request.keywords:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="sluice:")
        yield


def test_prefill_of_delta_0_has_transformers_own_logits(model):
    ids = tokens(700).to(model.device)
    expected = logits(model, ids)
    with hf.enable(model, delta=0) as enabled:
        assert_close(logits(model, ids), expected)
        assert all(share is not None for share in enabled.keys_read().values())
    assert torch.equal(logits(model, ids), expected)


def test_attention_that_opens_no_cluster_reads_less(model):
    with hf.enable(model, delta=float("inf"), window=128) as enabled:
        logits(model, tokens(1500).to(model.device))
        shares = enabled.keys_read()
    assert len(shares) == 3 and all(share < 1 for share in shares.values())


@pytest.mark.parametrize("options", [dict(delta=0.01), dict(delta=0.05, strict=True, window=64)])
def test_a_trained_model_has_the_loss_and_the_reads_of_the_program(options, tmp_path):
    n = 1024
    program = sluice.Model.from_pretrained(sluice.demo_model(), context=n)
    expected = program.evaluate(sluice.demo_text(), sluice.Plan.uniform("refine", **options),
                                max_windows=1)["plans"][0]
    ids = program.info["end_tokens"] + program.tokenize(sluice.demo_text().read_text()).tolist()
    ids = torch.tensor([ids[:n]])
    model = transformers.AutoModelForCausalLM.from_pretrained(sluice.demo_model()).eval()
    model = model.float()
    dense = logits(model, ids).double().log_softmax(-1)
    with hf.enable(model, **options) as enabled:
        found = logits(model, ids).double().log_softmax(-1)
        shares = enabled.keys_read().values()
    kl = (dense.exp() * (dense - found)).sum(-1).mean().item()
    # Activations differ by round-off, so a cluster near the threshold may be decided differently.
    assert kl == pytest.approx(expected["kl"]["value"], rel=1e-2)
    assert sum(shares) / len(shares) == pytest.approx(expected["keys_read"], rel=1e-3)


def smollm2():
    """SmolLM2-135M as a GGUF file, which does not come along: SLUICE_SMOLLM2 is its path."""
    path = os.environ.get("SLUICE_SMOLLM2")
    if not path:
        pytest.skip("SLUICE_SMOLLM2 names no GGUF file of SmolLM2")
    pytest.importorskip("gguf")
    return pathlib.Path(path)


def test_smollm2_from_its_gguf_file_has_the_loss_and_the_reads_of_the_program():
    path, n = smollm2(), 1024
    program = sluice.Model.from_pretrained(path, weights="f32", context=n)
    expected = program.evaluate(sluice.demo_text(), sluice.Plan.uniform("refine", delta=0.01),
                                max_windows=1)["plans"][0]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    model.config.max_position_embeddings = n  # the context, which sizes of segments follow
    ids = [model.config.bos_token_id] + program.tokenize(sluice.demo_text().read_text()).tolist()
    ids = torch.tensor([ids[:n]])
    assert_close(logits(model, ids)[0], torch.from_numpy(program.logits(ids[0].numpy())))
    found = hf.measure(model, [ids], delta=0.01)
    print(f"KL {found['kl']:.6f} and {expected['kl']['value']:.6f},",
          f"keys read {found['keys_read']:.4f} and {expected['keys_read']:.4f}")
    # Activations differ by round-off, so a cluster near the threshold may be decided differently.
    assert found["kl"] == pytest.approx(expected["kl"]["value"], rel=1e-2)
    assert found["keys_read"] == pytest.approx(expected["keys_read"], rel=1e-3)


def test_decoding_of_delta_0_has_transformers_own_logits(model):
    ids = tokens(640).to(model.device)
    with torch.no_grad():
        own, ours = transformers.DynamicCache(), transformers.DynamicCache()
        for begin, end in [(0, 600), (600, 620)] + [(i, i + 1) for i in range(620, 640)]:
            expected = model(ids[:, begin:end], past_key_values=own).logits
            with hf.enable(model, delta=0):  # a new one finds a cache that it did not fill
                assert_close(model(ids[:, begin:end], past_key_values=ours).logits, expected)


def test_generate_gives_transformers_own_text(model):
    ids = tokens(500).to(model.device)
    expected = model.generate(ids, max_new_tokens=24, do_sample=False)
    with hf.enable(model, delta=0) as enabled:
        assert torch.equal(model.generate(ids, max_new_tokens=24, do_sample=False), expected)
        # Every token was taken in once: 523 with a cache, all but the last.
        assert {len(state.attentions[0]) for _, layer in enabled._layers
                for state in layer.states.values()} <= {523}


def test_a_batch_with_left_padding_has_transformers_own_logits(model):
    ids = tokens(600, batch=3).to(model.device)
    mask = torch.ones_like(ids)
    for row, pad in enumerate((0, 250, 37)):
        ids[row, :pad], mask[row, :pad] = 1, 0
    expected = logits(model, ids, attention_mask=mask)
    with hf.enable(model, delta=0):
        found = logits(model, ids, attention_mask=mask)
    for row, pad in enumerate((0, 250, 37)):
        assert_close(found[row, pad:], expected[row, pad:])
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
    with hf.enable(model, delta=0):
        assert torch.equal(
            model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False), expected)


def test_texts_may_go_beyond_the_positions_of_a_model():
    model, ids = make("llama", max_position_embeddings=64), tokens(60)
    expected = model.generate(ids, max_new_tokens=80, do_sample=False)
    with hf.enable(model, delta=0):
        assert torch.equal(model.generate(ids, max_new_tokens=80, do_sample=False), expected)


def test_nothing_of_a_cache_is_kept_alive():
    model, cache = make("llama"), transformers.DynamicCache()
    with hf.enable(model, delta=0) as enabled, torch.no_grad():
        model(tokens(20), past_key_values=cache)
        assert all(len(layer.states) == 1 for _, layer in enabled._layers)
        del cache
        gc.collect()
        assert all(len(layer.states) == 0 for _, layer in enabled._layers)


def test_a_plan_gives_each_layer_its_own():
    model, ids = make("llama"), tokens(900)
    plan = sluice.Plan.uniform("refine", delta=0.05, window=64, from_layer=1)
    with hf.enable(model, delta=[None, 0.05, 0.05], window=64) as enabled:
        expected, shares = logits(model, ids), enabled.keys_read()
    with hf.enable(model, plan=plan) as enabled:
        assert torch.equal(logits(model, ids), expected)
        assert enabled.keys_read() == shares and set(shares) == {1, 2}


def test_a_tuned_plan_has_the_loss_and_the_reads_of_the_program(tmp_path):
    n = 512
    program = sluice.Model.from_pretrained(sluice.demo_model(), context=n)
    tuned = program.tune(sluice.demo_text(), max_kl=0.05, objective="reads", context=n, n_windows=1,
                         n_held_out=2, needles=False, separator="\n\n")
    tuned["plan"].save(tmp_path / "plan.json")
    plan = sluice.Plan.load(tmp_path / "plan.json")
    expected = program.evaluate(sluice.demo_text(), plan, max_windows=1)["plans"][0]
    assert expected["keys_read"] < 1
    ids = program.info["end_tokens"] + program.tokenize(sluice.demo_text().read_text()).tolist()
    model = transformers.AutoModelForCausalLM.from_pretrained(sluice.demo_model(), dtype=torch.float32)
    found = hf.measure(model.eval(), [torch.tensor(ids[:n])], plan=plan)
    assert found["kl"] == pytest.approx(expected["kl"]["value"], rel=1e-2)
    n_layers = program.info["n_layers"]
    served = list(found["keys_read_by_head"].values())
    share = (sum(sum(heads) / len(heads) for heads in served) + n_layers - len(served)) / n_layers
    assert share == pytest.approx(expected["keys_read"], rel=1e-3)
    with pytest.raises(sluice.Error, match="12 layers, the model 3"):
        hf.enable(make("llama"), plan=plan)
    with pytest.raises(sluice.Error, match="a plan says"):
        hf.enable(model, plan=plan, delta=0.1)


def test_a_cache_of_our_own_gives_the_same_text_and_keeps_no_keys(model):
    ids = tokens(400, batch=2).to(model.device)
    mask = torch.ones_like(ids)
    ids[1, :90], mask[1, :90] = 1, 0
    options = dict(attention_mask=mask, max_new_tokens=20, do_sample=False)
    with hf.enable(model, delta=0.02, window=64):
        expected = model.generate(ids, **options)
        cache = hf.Cache(model)
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), expected)
        assert cache.get_seq_length() == 419 and all(layer.keys is None for layer in cache.layers)
        cache.reset()
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_a_cache_of_our_own_nothing_is_copied(model, dtype, monkeypatch):
    copies, rows = [], _enable._rows

    def watched(heads, dtype):
        found = rows(heads, dtype)
        copies.append(found.data_ptr() != heads.data_ptr())
        return found

    monkeypatch.setattr(_enable, "_rows", watched)
    model, ids = model.to(dtype), tokens(41).to(model.device)
    with hf.enable(model, delta=0), torch.no_grad():
        cache = hf.Cache(model)
        for part in (ids[:, :40], ids[:, 40:]):
            model(part, past_key_values=cache)
    assert copies == [False] * (3 * 2 * 3)  # queries, keys and values, two passes, three layers


def test_a_cache_of_our_own_leaves_other_layers_to_transformers():
    model, ids = make("llama"), tokens(300)
    expected = model.generate(ids, max_new_tokens=10, do_sample=False)
    with hf.enable(model, delta=[0, None, 0]):
        cache = hf.Cache(model)
        found = model.generate(ids, past_key_values=cache, max_new_tokens=10, do_sample=False)
    assert torch.equal(found, expected)
    assert [layer.keys is None for layer in cache.layers] == [True, False, True]


def test_what_a_cache_of_our_own_cannot_do_is_refused():
    model, ids = make("llama", max_position_embeddings=64), tokens(60)
    with pytest.raises(sluice.Error, match="not Sluice's"):
        hf.Cache(model)
    with hf.enable(model, delta=0), torch.no_grad():
        cache = hf.Cache(model)
        model(ids, past_key_values=cache)
        with pytest.raises(sluice.Error, match="room for 64"):
            model(tokens(5), past_key_values=cache)
        for change in (lambda: cache.crop(-3), lambda: cache.reorder_cache(torch.tensor([0])),
                       lambda: copy.deepcopy(cache)):
            with pytest.raises(sluice.Error, match="cannot be copied|not cropped"):
                change()
        cache = hf.Cache(model)
        model(ids[:, :20], past_key_values=cache)
    with pytest.raises(sluice.Error, match="gradients"), hf.enable(model, delta=0):
        model(ids, past_key_values=hf.Cache(model))
    with pytest.raises(sluice.Error, match="did not get"), hf.enable(model, delta=0), torch.no_grad():
        model(ids[:, 20:30], past_key_values=cache)


def test_beams_which_reorder_the_cache_give_transformers_own_text():
    model, ids = make("llama"), tokens(80, batch=2)
    options = dict(max_new_tokens=8, num_beams=3, do_sample=False)
    expected = model.generate(ids, **options)
    with hf.enable(model, delta=0):
        assert torch.equal(model.generate(ids, **options), expected)


def test_a_cache_that_was_cropped_or_copied_goes_on_from_there():
    model, ids = make("qwen2"), tokens(300)
    expected = logits(model, ids)
    with torch.no_grad(), hf.enable(model, delta=0):
        cache = transformers.DynamicCache()
        model(torch.cat([ids[:, :200], tokens(20, seed=8)], dim=1), past_key_values=cache)
        cache.crop(-20)
        copied = copy.deepcopy(cache)
        for each in (cache, copied):
            assert_close(model(ids[:, 200:], past_key_values=each).logits, expected[:, 200:])


def errors(model, ids, exact):
    """Root mean squares of what sdpa and we are off the exact model."""
    sdpa = (logits(model, ids).float() - exact).square().mean().sqrt().item()
    with hf.enable(model, delta=0):
        found = logits(model, ids)
    assert found.dtype == model.dtype
    return sdpa, (found.float() - exact).square().mean().sqrt().item()


@pytest.mark.parametrize("head_dim", [16, 64, 128, 256])
def test_bfloat16_is_as_near_to_the_exact_model_as_sdpa(device, head_dim):
    model = make("llama", head_dim=head_dim).to(device)
    ids = tokens(700).to(device)
    exact = logits(model, ids)
    sdpa, ours = errors(model.to(torch.bfloat16), ids, exact)
    # Most of the error is the rounding of weights and activations, which both have.
    assert ours < 1.2 * sdpa


def test_float16_is_as_near_to_the_exact_model_as_the_dtype_that_it_is_computed_in(device):
    model, ids = make("llama").to(device), tokens(400).to(device)
    exact = logits(model, ids)
    rounded = copy.deepcopy(model).to(torch.bfloat16 if device == "cuda" else torch.float16)
    expected, _ = errors(rounded, ids, exact)
    _, ours = errors(model.to(torch.float16), ids, exact)
    assert ours < 1.2 * expected


@pytest.mark.skipif(bool(NO_CUDA), reason=NO_CUDA)
def test_halves_decode_on_a_gpu_as_they_prefill():
    model = make("llama", head_dim=64).to("cuda", torch.bfloat16)
    ids = tokens(700, batch=2).to("cuda")
    expected = logits(model, ids).float()
    with hf.enable(model, delta=0), torch.no_grad():
        for cache in (transformers.DynamicCache(), hf.Cache(model)):
            parts = [model(ids[:, a:b], past_key_values=cache).logits
                     for a, b in [(0, 600), (600, 660)] + [(i, i + 1) for i in range(660, 700)]]
            found = torch.cat(parts, dim=1).float()
            # Activations of three layers are rounded to 2^-9 in other places; the head has 64 of them.
            assert_close(found, expected, share=2 ** -5)


@pytest.mark.skipif(bool(NO_CUDA), reason=NO_CUDA)
def test_another_stream_of_torch_is_followed():
    model, ids = make("llama").to("cuda"), tokens(600).to("cuda")
    expected, cache = logits(model, ids), transformers.DynamicCache()
    with hf.enable(model, delta=0) as enabled, torch.no_grad():
        found = []
        for begin, end in ((0, 500), (500, 501), (501, 600)):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found.append(model(ids[:, begin:end], past_key_values=cache).logits)
            torch.cuda.current_stream().wait_stream(stream)
        assert_close(torch.cat(found, dim=1), expected)
        # All layers share one device.
        shared = {id(layer.shared) for _, layer in enabled._layers}
        assert len(shared) == 1 and len(enabled._layers[0][1].shared.devices) == 1


def test_inference_mode_is_served():
    model, ids = make("llama"), tokens(100)
    expected = logits(model, ids)
    with hf.enable(model, delta=0), torch.inference_mode():
        cache = transformers.DynamicCache()
        parts = [model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 90), (90, 91), (91, 100))]
    assert_close(torch.cat(parts, dim=1), expected)


@pytest.mark.falls_back
def test_a_sliding_window_falls_back_once_the_text_is_longer():
    model, ids = make("mistral", sliding_window=64), tokens(100)
    expected = logits(model, ids)
    with hf.enable(model, delta=0) as enabled:
        with pytest.warns(UserWarning, match="sliding window of 64") as said:
            found = logits(model, ids)
            logits(model, ids)
        assert len(said) == 1
        assert torch.equal(found, expected)
        assert set(enabled.keys_read().values()) == {None}
        assert_close(logits(model, ids[:, :50]), expected[:, :50])


@pytest.mark.falls_back
def test_a_window_that_a_cache_leaves_behind_falls_back():
    model, ids = make("mistral", sliding_window=64), tokens(60)
    expected = model.generate(ids, max_new_tokens=20, do_sample=False)
    with hf.enable(model, delta=0), pytest.warns(UserWarning, match="sliding window"):
        assert torch.equal(model.generate(ids, max_new_tokens=20, do_sample=False), expected)


@pytest.mark.falls_back
def test_other_masks_and_gradients_fall_back():
    model, ids = make("llama"), tokens(40, batch=2)
    mask = torch.ones(2, 40, dtype=torch.long)
    mask[0, 30:] = 0  # padding at the right
    expected = logits(model, ids, attention_mask=mask)
    with hf.enable(model, delta=0):
        with pytest.warns(UserWarning, match="padding at the left"):
            assert torch.equal(logits(model, ids, attention_mask=mask), expected)
        with pytest.warns(UserWarning, match="gradients"):
            model(ids).logits.sum().backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad is not None


@pytest.mark.falls_back
def test_a_static_cache_falls_back():
    model, ids = make("llama"), tokens(40)
    expected = model.generate(ids, max_new_tokens=8, do_sample=False)
    with hf.enable(model, delta=0), pytest.warns(UserWarning, match="cache"):
        found = model.generate(ids, max_new_tokens=8, do_sample=False, cache_implementation="static",
                               disable_compile=True)
    assert torch.equal(found, expected)


def test_threads_are_those_of_torch():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with hf.enable(make("llama"), delta=0):
            assert sluice.threads() == 1 and torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
        sluice.set_threads(before)


def test_a_layer_without_delta_stays_with_sdpa():
    model, ids = make("llama"), tokens(300)
    expected = logits(model, ids)
    with hf.enable(model, delta=[None, 0, None]) as enabled:
        assert_close(logits(model, ids), expected)
        assert list(enabled.keys_read()) == [1]


def test_what_cannot_be_enabled_is_refused():
    model = make("llama")
    for options, message in [(dict(attention="fast"), "'fast'"), (dict(delta=-1), "delta"),
                             (dict(delta=[0.1]), "1 values for 3 layers")]:
        with pytest.raises(sluice.Error, match=message):
            hf.enable(model, **options)
        assert model.config._attn_implementation != hf.NAME
    with pytest.raises(sluice.Error, match="attention layers"):
        hf.enable(transformers.BertModel(transformers.BertConfig(
            hidden_size=16, num_hidden_layers=0, num_attention_heads=2, intermediate_size=16)))


def test_enabling_again_takes_the_place_of_the_first():
    model = make("llama")
    before = model.config._attn_implementation
    hf.enable(model, delta=0.5)
    hf.enable(model, delta=0)
    hf.disable(model)
    hf.disable(model)
    assert model.config._attn_implementation == before
    assert not any("_sluice" in module.__dict__ for module in model.modules())


@pytest.fixture(scope="module")
def nano():
    model = transformers.AutoModelForCausalLM.from_pretrained(sluice.demo_model(), dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(sluice.demo_model())
    ids = tokenizer(sluice.demo_text().read_text(), return_tensors="pt").input_ids
    return model.eval(), [ids[:, :600], ids[0, 600:900]]


def test_tune_finds_the_largest_delta_that_keeps_the_contract(nano):
    model, texts = nano
    tuned = hf.tune(model, texts, max_kl=0.02)
    assert tuned["kl"] + 2 * tuned["kl_stderr"] <= 0.02
    assert 0 < tuned["keys_read"] < 1 and tuned["n_tokens"] == 900
    tried = {each["delta"]: each for each in tuned["tried"]}
    larger = hf.DELTAS[hf.DELTAS.index(tuned["delta"]) + 1]
    assert tried[larger]["kl"] + 2 * tried[larger]["kl_stderr"] > 0.02
    assert model.config._attn_implementation != hf.NAME
    again = hf.measure(model, texts, delta=tuned["delta"])
    assert again["kl"] == pytest.approx(tuned["kl"], rel=1e-2)
    assert len(again["keys_read_by_head"]) == 12


def test_what_is_held_out_must_keep_the_contract_too(nano):
    model, texts = nano
    easy = torch.full((400,), int(texts[1][0]))  # one token again and again: its means are exact
    alone = hf.tune(model, [easy], max_kl=0.02)
    tuned = hf.tune(model, [easy], max_kl=0.02, held_out=texts[:1])
    assert alone["held_out"] is None and tuned["delta"] < alone["delta"]
    assert tuned["held_out"]["kl"] + 2 * tuned["held_out"]["kl_stderr"] <= 0.02
    assert tuned["held_out"]["n_tokens"] == 600 and tuned["n_tokens"] == 400


def test_profile_has_a_row_for_each_head(nano):
    model, texts = nano
    rows = hf.profile(model, texts[1:], deltas=[0.0, 1.0], window=64)
    assert len(rows) == 2 * 12 * 3
    assert {(row["layer"], row["head"]) for row in rows} == {(i, j) for i in range(12) for j in range(3)}
    every, few = (sum(row["keys_read"] for row in rows if row["delta"] == delta) for delta in (0.0, 1.0))
    assert few < every


@pytest.mark.skipif(bool(NO_CUDA), reason=NO_CUDA)
def test_what_is_measured_on_a_gpu_is_what_is_measured_on_the_cpu(nano):
    model, texts = nano
    there, texts_there = copy.deepcopy(model).to("cuda"), [text.to("cuda") for text in texts]
    plan = sluice.Plan.uniform("refine", delta=0.05, window=64, from_layer=1)
    for options in (dict(delta=0.01), dict(plan=plan)):
        expected, found = hf.measure(model, texts, **options), hf.measure(there, texts_there, **options)
        # Activations differ by round-off, so a cluster near the threshold may be decided differently.
        assert found["kl"] == pytest.approx(expected["kl"], rel=1e-2)
        assert found["keys_read"] == pytest.approx(expected["keys_read"], rel=1e-3)
        assert found["keys_read_by_head"].keys() == expected["keys_read_by_head"].keys()
    assert len(hf.profile(there, texts_there[1:], deltas=[1.0])) == 12 * 3
    assert hf.tune(there, texts_there, max_kl=0.02)["delta"] > 0


def test_a_contract_that_nothing_keeps_is_refused():
    model, text = make("llama").to(torch.bfloat16), tokens(200)
    # Rounding to bfloat16 in another place alone costs more.
    with pytest.raises(sluice.Error, match="every key read"):
        hf.tune(model, [text], max_kl=1e-12)
    with pytest.raises(sluice.Error, match="no loss"):
        hf.tune(model, [text], max_kl=0)
    with pytest.raises(sluice.Error, match="no text"):
        hf.tune(model, [text[:, :1]], max_kl=1)
    with pytest.raises(sluice.Error, match="no texts"):
        hf.tune(model, [], max_kl=1)
