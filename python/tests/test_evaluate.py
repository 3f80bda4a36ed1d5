"""Figures of texts and plans, tuning, and plan files."""

import json
import math

import pytest

import sluice


def test_the_loss_is_that_of_the_logits(tmp_path):
    model = sluice.Model.from_pretrained(sluice.demo_model(), context=64)
    text = tmp_path / "text.txt"
    text.write_text(sluice.demo_text().read_text()[:400])
    # GPT-2 begins a document with its end token.
    tokens = (model.info["end_tokens"] + model.tokenize(text.read_text()).tolist())[:65]
    logits = model.logits(tokens[:-1]).astype("float64")
    logits -= logits.max(axis=1, keepdims=True)
    losses = [math.log(sum(math.exp(x) for x in row)) - row[token]
              for row, token in zip(logits, tokens[1:])]
    found = model.evaluate(text, max_windows=1)
    assert found["n_tokens"] == 64 and found["n_windows"] == 1
    # Float32 logits of the same sums: a loss of some nats is right to six digits.
    assert found["loss"]["value"] == pytest.approx(sum(losses) / 64, rel=1e-5)
    assert found["perplexity"]["value"] == pytest.approx(math.exp(found["loss"]["value"]))


def test_plans_are_compared_with_exact_attention(demo):
    seen = []
    plans = {"exact": sluice.Plan(), "refine": sluice.Plan.uniform("refine", delta=0.05)}
    found = demo.evaluate(sluice.demo_text(), plans, max_windows=1, progress=seen.append)
    assert seen == [1]
    exact, refine = found["plans"]
    assert exact["kl"]["value"] == 0 and exact["keys_read"] == 1
    assert refine["kl"]["value"] > 0 and refine["keys_read"] < 1
    assert json.loads(json.dumps(found)) == found


def test_a_progress_that_raises_ends_the_evaluation(demo):
    def progress(n):
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        demo.evaluate(sluice.demo_text(), progress=progress)


@pytest.fixture(scope="module")
def tuned():
    """What tuning for few reads found, on windows of 128 tokens, and the shares that it reported."""
    model = sluice.Model.from_pretrained(sluice.demo_model(), context=128)
    shares = []
    found = model.tune(sluice.demo_text(), max_kl=0.5, objective="reads", context=128, n_windows=1,
                       n_held_out=2, needles=False, separator="\n\n",
                       progress=lambda share, now: shares.append(share))
    return found, shares


def test_tune_keeps_its_contract_and_says_how_far_it_is(tuned):
    found, shares = tuned
    assert shares and shares == sorted(shares) and shares[-1] <= 1
    assert found["held_out"]["kl"]["value"] <= 0.5
    assert found["plan"].info["objective"] == "reads" and found["plan"].info["max_kl"] == 0.5
    assert "gpt2" in repr(found["plan"])


def test_a_plan_that_is_loaded_is_the_one_that_was_saved(tmp_path, tuned):
    plan = tuned[0]["plan"]
    plan.save(tmp_path / "plan.json")
    again = sluice.Plan.load(tmp_path / "plan.json")
    assert again.info == plan.info
    assert again.is_dense == plan.is_dense


def test_tune_without_a_contract_is_refused(demo):
    with pytest.raises(sluice.Error) as caught:
        demo.tune(sluice.demo_text())
    assert "max_kl" in str(caught.value)


def test_a_plan_of_another_model_is_refused(golden, tuned):
    other = sluice.Model.from_pretrained(golden / "llama")
    with pytest.raises(sluice.Error):
        other.logits([1, 2, 3], plan=tuned[0]["plan"])
