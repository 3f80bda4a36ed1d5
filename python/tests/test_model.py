"""Loading, tokens, logits and sequences."""

import json
import pathlib
import re
import threading

import numpy as np
import pytest
from safetensors.numpy import load_file

import sluice

# Float32 sums in another order, as a share of the range of the logits: docs/architecture.md, "Numbers".
ROUND_OFF = 2e-5


def assert_close(found, expected):
    assert found.shape == expected.shape
    span = expected.max() - expected.min()
    assert np.abs(found - expected).max() <= ROUND_OFF * span


def test_the_version_is_that_of_the_project():
    root = pathlib.Path(__file__).resolve().parents[2]
    project = re.search(r"project\(sluice VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text())
    assert sluice.__version__ == project.group(1)


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama-gqa-tied", "mistral", "opt", "qwen2", "qwen3"])
def test_logits_are_those_of_transformers(golden, name):
    folder = golden / name
    cases = json.loads((folder / "golden.json").read_text())["cases"]
    expected = load_file(folder / "golden.safetensors")
    model = sluice.Model.from_pretrained(folder)
    for i, case in enumerate(cases):
        logits = model.logits(case["ids"])
        assert logits.dtype == np.float32
        assert_close(logits, expected[f"logits.{i}"].reshape(logits.shape))


def test_logits_are_memory_of_the_library(demo):
    logits = demo.logits("The sea was")
    assert not logits.flags.owndata and logits.flags.c_contiguous


def test_tokens_make_the_text_again(demo):
    text = "The sea was calm.\nÉté – ½"
    tokens = demo.tokenize(text)
    assert tokens.dtype == np.int32
    assert demo.detokenize(tokens) == text
    assert demo.detokenize(tokens.tolist()) == text
    assert demo.detokenize([]) == ""


def test_info_is_a_plain_dict(demo):
    info = demo.info
    assert info["family"] == "gpt2" and info["n_layers"] == 12 and info["context"] == 1024
    assert json.loads(json.dumps(info)) == info
    assert "gpt2" in repr(demo)


def test_a_sequence_in_pieces_has_the_logits_of_the_whole(demo):
    tokens = demo.tokenize("The sea was calm, and the wind had gone down with the sun.")
    whole = demo.logits(tokens)
    sequence = sluice.Sequence(demo)
    sequence.append(tokens[:5])
    assert_close(sequence.logits(), whole[4])
    assert_close(sequence.append_scored(tokens[5:8]), whole[5:8])
    sequence.append(tokens[8])
    assert_close(sequence.logits(), whole[8])
    assert len(sequence) == 9 and sequence.capacity == 1024
    sequence.truncate(5)
    kept = whole[5].copy()
    sequence.append(tokens[5:6])
    assert_close(sequence.logits(), kept)
    sequence.clear()
    assert len(sequence) == 0


def test_logits_of_a_sequence_stay_as_they_were(demo):
    sequence = sluice.Sequence(demo)
    sequence.append(demo.tokenize("The sea"))
    first = sequence.logits()
    kept = first.copy()
    sequence.append(demo.tokenize(" was"))
    assert np.array_equal(first, kept)


@pytest.mark.parametrize("call, message, hint", [
    (lambda m: sluice.Model.from_pretrained("nowhere"), "nowhere", "folder"),
    (lambda m: sluice.Model.from_pretrained(sluice.demo_model(), context=-1), "less than none", "0 for"),
    (lambda m: sluice.Model.from_pretrained(sluice.demo_model(), dtype="f64"), "'f64'", "f32, bf16"),
    (lambda m: m.logits([10**6]), "vocabulary", "this model's"),
    (lambda m: m.logits([-1]), "out of range", "this model's"),
    (lambda m: m.logits([2**40]), "out of range", "this model's"),
    (lambda m: m.logits([]), "no tokens", "one or more"),
    (lambda m: m.logits([[1, 2]]), "2 dimensions", "one sequence"),
    (lambda m: m.logits([0.5]), "whole numbers", "tokenize"),
    (lambda m: sluice.Sequence(m).logits(), "no logits", "append"),
    (lambda m: sluice.Sequence(m, capacity=4).append([1] * 5), "do not fit", "capacity"),
    (lambda m: sluice.Plan.load("nowhere.json"), "nowhere.json", ""),
    (lambda m: sluice.Plan.uniform(delta=-1), "delta", "0 or more"),
    (lambda m: sluice.Plan.uniform("fast"), "'fast'", "refine"),
    (lambda m: sluice.Plan().save("plan.json"), "no file", "tune"),
    (lambda m: sluice.Plan.uniform().save("plan.json"), "no file", "tune"),
    (lambda m: sluice.set_threads(-1), "less than none", "0 for"),
])
def test_what_cannot_be_done_is_an_error_with_a_hint(demo, call, message, hint):
    with pytest.raises(sluice.Error) as caught:
        call(demo)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in str(caught.value)
    if caught.value.hint:
        assert str(caught.value) == f"{caught.value.message} (hint: {caught.value.hint})"


def test_a_value_of_a_wrong_type_is_a_type_error(demo):
    with pytest.raises(TypeError, match="max_tokens"):
        demo.generate("x", max_tokens="many")
    with pytest.raises(TypeError, match="colour"):
        next(demo.stream("x", colour="blue"))


def test_an_error_can_be_pickled():
    import pickle
    error = pickle.loads(pickle.dumps(sluice.Error("no", "yes")))
    assert (error.message, error.hint) == ("no", "yes")


def test_threads_share_a_model_one_after_another(demo):
    expected = demo.logits("The sea was").copy()
    found = [None] * 4

    def read(i):
        found[i] = demo.logits("The sea was")

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for logits in found:
        assert_close(logits, expected)
