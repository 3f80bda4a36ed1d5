"""Text after a prompt: whole, as a stream, in batches, as chat."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import sluice

PROMPT = "The sea was"


def test_a_greedy_text_is_that_of_the_logits(demo):
    tokens = list(demo.tokenize(PROMPT))
    expected = []
    for _ in range(5):
        expected.append(int(demo.logits(tokens)[-1].argmax()))
        tokens.append(expected[-1])
    text = demo.generate(PROMPT, max_tokens=5)
    assert isinstance(text, str)
    assert text.details["tokens"] == expected
    assert text == demo.detokenize(expected) == text.details["text"]
    assert text.details["end"] == "length" and text.details["n_prompt"] == len(tokens) - 5
    assert text.details["followed_plan"] is False and text.details["audit"] is None


def test_a_stream_has_the_tokens_of_the_text(demo):
    text = demo.generate(PROMPT, max_tokens=12)
    tokens = list(demo.stream(PROMPT, max_tokens=12))
    assert [token.id for token in tokens if token.id >= 0] == text.details["tokens"]
    assert "".join(token.text for token in tokens) == text


def test_a_seed_gives_the_same_text(demo):
    options = dict(max_tokens=12, temperature=1.0, top_p=0.9)
    first = demo.generate(PROMPT, seed=1, **options)
    assert demo.generate(PROMPT, seed=1, **options) == first
    assert demo.generate(PROMPT, seed=2, **options) != first


def test_a_stop_string_ends_the_text(demo):
    text = demo.generate(PROMPT, max_tokens=40)
    word = text.split()[3]
    stopped = demo.generate(PROMPT, max_tokens=40, stop=[word])
    assert stopped == text[:text.index(word)]
    assert stopped.details["end"] == "stop-string"
    assert demo.generate(PROMPT, max_tokens=40, stop=word) == stopped


def test_on_token_may_end_the_text(demo):
    seen = []

    def on_token(token, text):
        seen.append(token)
        return len(seen) < 3

    text = demo.generate(PROMPT, max_tokens=40, on_token=on_token)
    assert len(seen) == 3 and text.details["end"] == "callback"


def test_what_on_token_raises_passes_through(demo):
    def on_token(token, text):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        demo.generate(PROMPT, on_token=on_token)
    assert demo.generate(PROMPT, max_tokens=2).details["end"] == "length"


def test_errors_of_a_stream_come_out_of_it(demo):
    with pytest.raises(sluice.Error, match="max_tokens"):
        next(demo.stream(PROMPT, max_tokens=-1))
    with pytest.raises(sluice.Error, match="on_token"):
        demo.stream(PROMPT, on_token=print)


def test_a_model_in_a_stream_refuses_other_calls_until_it_is_closed(demo):
    stream = demo.stream(PROMPT)
    next(stream)
    with pytest.raises(sluice.Error, match="stream"):
        demo.logits(PROMPT)
    stream.close()
    assert len(demo.logits(PROMPT)) == 3


def test_a_loop_that_is_left_frees_the_model(demo):
    for _ in demo.stream(PROMPT):
        break
    assert len(demo.logits(PROMPT)) == 3


def test_a_plan_is_followed_and_audited(demo):
    prompt = sluice.demo_text().read_text()[:3000]
    plan = sluice.Plan.uniform("refine", delta=0.05)
    text = demo.generate(prompt, max_tokens=16, plan=plan, audit_every=8)
    assert text.details["followed_plan"]
    assert text.details["audit"]["prompt_kl"]["n_samples"] > 0
    assert text.details["audit"]["prompt_kl"]["mean"] >= 0


def test_a_batch_has_the_answers_in_order_and_an_error_in_its_place(demo):
    prompts = [PROMPT, "x " * 2000, "Once upon a time"]
    answers = demo.generate_batch(prompts, max_tokens=6, max_live=2)
    assert answers[0] == demo.generate(prompts[0], max_tokens=6)
    assert isinstance(answers[1], sluice.Error) and answers[1].hint
    assert answers[2] == demo.generate(prompts[2], max_tokens=6)


def test_chat_answers_in_a_format(demo):
    messages = [{"role": "user", "content": "What is the sea?"}]
    answer = demo.chat(messages, format="zephyr", max_tokens=4)
    assert len(answer.details["tokens"]) <= 4
    with pytest.raises(sluice.Error):
        demo.chat(messages, max_tokens=4)  # the demo's model has no template
    with pytest.raises(sluice.Error, match="'robot'"):
        demo.chat([{"role": "robot", "content": ""}], format="zephyr")


# What runs the tests may ignore Ctrl-C, and its children would with it.
ENDLESS = """
import signal, sluice
signal.signal(signal.SIGINT, signal.default_int_handler)
model = sluice.Model.from_pretrained(sluice.demo_model())
try:
    while True:
        {call}
except KeyboardInterrupt:
    print("stopped", len(model.logits("The sea was")))
"""


@pytest.mark.parametrize("call", [
    "model.generate('The sea was', max_tokens=1000, ignore_end=True,"
    " on_token=lambda i, t: print('token', flush=True))",
    "for token in model.stream('The sea was', max_tokens=1000, ignore_end=True):"
    " print('token', flush=True)",
    "model.evaluate(sluice.demo_text(), progress=lambda n: print('token', flush=True))",
])
def test_ctrl_c_ends_a_long_call_and_leaves_the_model_usable(call):
    # Python resolves the package as this process does. The signal comes when the first token is there.
    child = subprocess.Popen([sys.executable, "-c", ENDLESS.format(call=call)], stdout=subprocess.PIPE,
                             text=True, env=dict(os.environ))
    assert child.stdout.readline() == "token\n"
    child.send_signal(signal.SIGINT)
    rest, _ = child.communicate(timeout=300)
    assert child.returncode == 0
    assert rest.splitlines()[-1] == "stopped 3"
