"""A model class for lm-evaluation-harness, by the name ``sluice``.

    python -m sluice.lm_eval run --model sluice --model_args pretrained=MODEL,attention=refine --tasks TASK

is ``lm_eval`` with this model in addition to its own; in Python, importing this module registers it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from ._errors import Error
from ._model import Model
from ._plan import Plan


def _plan(attention: str, plan: str | None, options: dict[str, Any]) -> Plan:
    if plan is not None:
        return Plan.load(plan)
    return Plan() if attention == "dense" else Plan.uniform(attention, **options)


@register_model("sluice")
class SluiceLM(TemplateLM):
    """Scores and answers requests of the harness, one at a time, by a plan or exactly."""

    def __init__(self, pretrained: str, device: str | None = None, dtype: str = "f32",
                 weights: str = "as-stored", max_length: int = 0, max_gen_toks: int = 256,
                 attention: str = "dense", plan: str | None = None, batch_size: Any = 1,
                 max_batch_size: Any = None, **options: Any) -> None:
        """
        Args:
            pretrained: a Hugging Face folder or a .gguf file.
            device: "cpu" or "cuda". "cuda:0", which the harness gives where nobody named a device, is "cpu".
            dtype, weights: of :meth:`sluice.Model.from_pretrained`.
            max_length: tokens that a sequence may have; 0: the model's own limit.
            max_gen_toks: of an answer, where a task does not say.
            attention: "dense", "refine", "keys" or "copy", with options of :meth:`sluice.Plan.uniform`.
            plan: a file of ``sluice tune``, in place of attention.
            batch_size, max_batch_size: the harness gives them; requests go one at a time.
        """
        super().__init__()
        self.model = Model.from_pretrained(
            pretrained, device="cpu" if device in (None, "cuda:0") else device, dtype=dtype,
            weights=weights, context=int(max_length))
        self.plan = _plan(attention, plan, options)
        self.max_length: int = self.model.info["context"]
        self.max_gen_toks = max_gen_toks

    @property
    def eot_token_id(self) -> int:
        ends = self.model.info["end_tokens"]
        if not ends:
            raise Error("this model has no end token, which begins texts here", "a model that names one")
        return ends[0]

    @property
    def tokenizer_name(self) -> str:
        return self.model.info["family"]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return self.model.tokenize(string, add_special=bool(add_special_tokens)).tolist()

    def _score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        """Log-probability of a continuation, and whether each of its tokens is the likeliest."""
        tokens = (context + continuation)[-(self.max_length + 1):]
        logits = self.model.logits(tokens[:-1], plan=self.plan)[-len(continuation):].astype(np.float64)
        wanted = np.asarray(tokens[-len(logits):])
        logits -= logits.max(axis=1, keepdims=True)
        scores = logits[np.arange(len(wanted)), wanted] - np.log(np.exp(logits).sum(axis=1))
        return float(scores.sum()), bool((logits.argmax(axis=1) == wanted).all())

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False,
                              **_: Any) -> list[tuple[float, bool]]:
        found = []
        for text, context, continuation in tqdm(requests, disable=disable_tqdm):
            found.append(self._score(context, continuation))
            if text is not None:
                self.cache_hook.add_partial("loglikelihood", text, found[-1])
        return found

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        found = []
        for (text,) in tqdm([request.args for request in requests], disable=disable_tqdm):
            windows = get_rolling_token_windows(token_list=self.tok_encode(text),
                                                prefix_token=self.prefix_token_id,
                                                max_seq_len=self.max_length, context_len=1)
            scores = [self._score(*make_disjoint_window(window))[0] for window in windows]
            found.append(sum(scores))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), found[-1])
        return found

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        found = []
        for prompt, wanted in tqdm([request.args for request in requests], disable=disable_tqdm):
            until = wanted.get("until") or []
            n_tokens = min(int(wanted.get("max_gen_toks", self.max_gen_toks)), self.max_length - 1)
            # The end of a prompt that is too long counts.
            tokens = self.tok_encode(prompt)
            if len(tokens) > self.max_length - n_tokens:
                prompt = self.model.detokenize(tokens[n_tokens - self.max_length:], with_special=True)
            found.append(str(self.model.generate(
                prompt, max_tokens=n_tokens, stop=until, plan=self.plan, always=True,
                temperature=float(wanted.get("temperature") or 0) if wanted.get("do_sample") else 0.0)))
            self.cache_hook.add_partial("generate_until", (prompt, wanted), found[-1])
        return found


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
