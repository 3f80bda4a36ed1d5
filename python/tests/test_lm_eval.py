"""lm-evaluation-harness: a tiny task, with our model class, and with its own `hf` and sluice.hf in it."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("torch")

import sluice  # noqa: E402

TASK = """
task: tiny_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
  - metric: acc_norm
"""
DOCS = [("The sun rose in the", [" east", " spoon", " of"], 0),
        ("He opened the door and went", [" blue", " into the room", " sea"], 1),
        ("The sea was", [" a little", " and and", " door"], 0),
        ("She looked at him and", [" the of", " table", " said"], 2),
        ("It was a cold", [" said", " night", " them"], 1)]


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """A folder with the task; the harness's libraries stay off the network."""
    for name in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    data = tmp_path / "docs.jsonl"
    data.write_text("".join(json.dumps({"text": text, "choices": choices, "answer": answer}) + "\n"
                            for text, choices, answer in DOCS))
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "tiny_choice.yaml").write_text(TASK.format(data=data))
    return folder


def scores(model, tasks):
    import lm_eval
    from lm_eval.tasks import TaskManager
    found = lm_eval.simple_evaluate(model=model, tasks=["tiny_choice"], log_samples=True,
                                    task_manager=TaskManager(include_path=str(tasks), include_defaults=False))
    answers = [[score for score, _ in sample["filtered_resps"]] for sample in found["samples"]["tiny_choice"]]
    return found["results"]["tiny_choice"], answers


def test_both_model_classes_have_the_same_score(tasks):
    import transformers
    from lm_eval.models.huggingface import HFLM

    import sluice.hf
    from sluice.lm_eval import SluiceLM
    ours, our_answers = scores(SluiceLM(pretrained=str(sluice.demo_model())), tasks)
    model = transformers.AutoModelForCausalLM.from_pretrained(sluice.demo_model()).float().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(sluice.demo_model())
    wrapped = HFLM(pretrained=model, tokenizer=tokenizer, device="cpu")
    theirs, their_answers = scores(wrapped, tasks)
    with sluice.hf.enable(model, delta=0):
        refined, refined_answers = scores(wrapped, tasks)
    for metric in ("acc,none", "acc_norm,none"):
        assert ours[metric] == theirs[metric] == refined[metric]
    for a, b, c in zip(our_answers, their_answers, refined_answers):
        # Sums of float32 log-probabilities of some nats each.
        assert a == pytest.approx(b, abs=1e-3) and c == pytest.approx(b, abs=1e-3)


def test_texts_are_scored_and_continued():
    from types import SimpleNamespace

    from sluice.lm_eval import SluiceLM
    model = SluiceLM(pretrained=str(sluice.demo_model()), max_length=64, attention="refine", delta=0)
    text = sluice.demo_text().read_text()[:1200]
    tokens = model.tok_encode(text)
    assert len(tokens) > 128  # three windows and more
    rolling = model.loglikelihood_rolling([SimpleNamespace(args=(text,))], disable_tqdm=True)
    assert -10 * len(tokens) < rolling[0] < 0
    wanted = {"until": ["\n"], "max_gen_toks": 8}
    answers = model.generate_until([SimpleNamespace(args=("The sea was", wanted)),
                                    SimpleNamespace(args=(text, wanted))], disable_tqdm=True)
    assert answers[0] == model.model.generate("The sea was", max_tokens=8, stop="\n")
    assert len(answers) == 2 and "\n" not in answers[1]


def test_the_command_of_the_harness_knows_the_model(tasks):
    command = [sys.executable, "-m", "sluice.lm_eval", "run", "--model", "sluice", "--model_args",
               f"pretrained={sluice.demo_model()}", "--tasks", "tiny_choice", "--include_path", str(tasks)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "tiny_choice" in done.stdout
