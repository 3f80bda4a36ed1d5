"""A model: text and tokens in, text, logits and figures out."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, Callable, Iterator, Mapping, Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from . import _core
from ._errors import Error
from ._plan import Plan, core_of
from ._results import Analysis, Evaluation, analysis_of, evaluation_of
from ._stream import Handover, Token


def _ids(tokens: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """Token ids as the library takes them; an array of int32 is taken as it is."""
    ids = np.asarray(tokens)
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise Error("token ids are whole numbers", "tokenize() makes them of a text")
    if ids.ndim != 1:
        raise Error(f"token ids of {ids.ndim} dimensions are no sequence", "one sequence at a time")
    if ids.size and (ids.min() < 0 or ids.max() > np.iinfo(np.int32).max):
        raise Error("a token id is out of range", "are the tokens this model's?")
    return np.ascontiguousarray(ids, dtype=np.int32)


class Text(str):
    """A generated text: a str, with how it came about in ``details``."""

    details: dict[str, Any]

    @classmethod
    def _of(cls, result: dict[str, Any]) -> Text:
        text = cls(result["text"])
        text.details = result
        return text


class Model:
    """A model in memory, and its tokenizer.

    Calls from several threads follow one another. Long calls give up the interpreter's lock, and Ctrl-C
    ends them between two tokens or windows.
    """

    def __init__(self, core: _core.Model) -> None:
        self._core = core
        self._lock = threading.RLock()
        self._streaming = False

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], *, device: str = "cpu",
                        dtype: str = "f32", weights: str = "as-stored", context: int = 0) -> Model:
        """Loads a Hugging Face folder (config.json, \\*.safetensors, tokenizer.json) or a .gguf file.

        Args:
            path: of a folder or file on this machine; nothing is downloaded.
            device: "cpu", "cuda" or "reference".
            dtype: "f32" or "bf16", of weights, activations and cache.
            weights: "as-stored", or a type to expand or quantise to: "f32", "bf16", "q8_0", "q4_k", …
            context: tokens that a sequence may have; 0: the model's own limit.

        Raises:
            Error: for files that are missing, damaged or of an unknown family, and for options that do
                not go together or with this machine.
        """
        return cls(_core.Model.load(os.fspath(path), {"device": device, "dtype": dtype,
                                                      "weights": weights, "context": context}))

    @property
    def info(self) -> dict[str, Any]:
        """What the model is: family, sizes, device, bytes of its weights."""
        return self._core.info

    def __repr__(self) -> str:
        info = self.info
        return (f"<sluice.Model {info['family']}, {info['n_layers']} layers of {info['d_model']}, "
                f"context {info['context']}>")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time; refuses to wait for a stream, which may be the caller's own."""
        with self._lock:
            if self._streaming:
                raise Error("this model is in the middle of a stream", "finish it, or close() it")
            yield

    def tokenize(self, text: str, *, add_special: bool = True) -> npt.NDArray[np.int32]:
        """Token ids of a text, with what the tokenizer's template adds unless ``add_special`` is False."""
        return self._core.tokenize(text, add_special)

    def detokenize(self, tokens: npt.ArrayLike, *, with_special: bool = False) -> str:
        """The text of token ids; special tokens are left out unless asked for."""
        return self._core.detokenize(_ids(tokens), with_special)

    def generate(self, prompt: str, *, max_tokens: int = 128, temperature: float = 0, top_k: int = 0,
                 top_p: float = 1, min_p: float = 0, repetition_penalty: float = 1, seed: int = 0,
                 stop: SequenceOf[str] = (), ignore_end: bool = False, plan: Plan | None = None,
                 always: bool = False, audit_every: int = 0, audit_mode: str = "replay",
                 on_token: Callable[[int, str], bool | None] | None = None) -> Text:
        """Continues a prompt; returns the answer, a str with ``details``.

        Args:
            prompt: a text; an empty one begins a text.
            max_tokens: of the answer, at most.
            temperature: 0 takes the likeliest token; higher is more varied.
            top_k, top_p, min_p, repetition_penalty, seed: of sampling.
            stop: the answer ends before the first of these.
            ignore_end: go on past the model's end token.
            plan: followed where it was measured to pay; ``details["why_dense"]`` says why it was not.
            always: follow the plan everywhere.
            audit_every: measure the loss of the plan, in passes of so many tokens; 0: not.
            audit_mode: "replay" or "step".
            on_token: called with id and text of every token; False ends the answer.

        Raises:
            Error: for an encoder, a prompt as long as the context, options out of range, and a plan that
                the model cannot follow.
        """
        options = self._options(locals())
        with self._alone():
            return Text._of(_core.generate(self._core, prompt, on_token, options))

    def stream(self, prompt: str, **options: Any) -> Iterator[Token]:
        """The same answer token by token; options are those of :meth:`generate`.

        Each token is made when it is asked for. Until the end, or ``close()``, the model takes no other
        calls; a ``for`` loop that is left closes it.
        """
        if options.pop("on_token", None) is not None:
            raise Error("a stream has no on_token", "generate() has it")
        options = self._options({"plan": None, "stop": (), **options})
        n_threads = _core.threads()

        def call(on_token: Callable[[int, str], bool]) -> Any:
            _core.set_threads(n_threads)  # OpenMP keeps a number for each thread
            return _core.generate(self._core, prompt, on_token, options)

        def tokens() -> Iterator[Token]:
            with self._alone():
                self._streaming = True
            try:
                yield from Handover(call).tokens()
            finally:
                self._streaming = False

        return tokens()

    @staticmethod
    def _options(given: dict[str, Any]) -> dict[str, Any]:
        """Options of generate() as the extension module takes them."""
        options = {name: value for name, value in given.items()
                   if name not in ("self", "prompt", "prompts", "messages", "on_token", "max_live", "format")}
        stop = options["stop"]
        options["stop"] = [stop] if isinstance(stop, str) else list(stop)
        options["plan"] = core_of(options["plan"])
        return options

    def generate_batch(self, prompts: SequenceOf[str], *, max_live: int = 16,
                       **options: Any) -> list[Text | Error]:
        """Continues several prompts together; products read the weights once for all of them.

        Args:
            prompts: texts; answers come in their order. A prompt that is refused gets an Error in its
                place, and the others are not affected.
            max_live: texts that are generated at one time.
            **options: of :meth:`generate`, without ``on_token`` and audit.
        """
        options = self._options({"plan": None, "stop": (), **options})
        with self._alone():
            results = _core.generate_batch(self._core, list(prompts), max_live, options)
        return [Error(each["error"], each["hint"]) if "error" in each else Text._of(each)
                for each in results]

    def chat(self, messages: SequenceOf[Mapping[str, str]], *, format: str = "",
             **options: Any) -> Text:
        """Answers the last of some messages, in the format of the model's chat template.

        Args:
            messages: dicts of "role" ("system", "user" or "assistant") and "content".
            format: a name of docs/chat.md; empty for the model's own.
            **options: of :meth:`generate`, without ``on_token``.
        """
        options = self._options({"plan": None, "stop": (), **options})
        said = [dict(message) for message in messages]
        with self._alone():
            return Text._of(_core.chat(self._core, said, format, options))

    def logits(self, tokens: str | npt.ArrayLike, *, plan: Plan | None = None) -> npt.NDArray[np.float32]:
        """The logits after every token of a text or of token ids: (n_tokens, vocab), float32.

        The array is the library's own memory; nothing is copied.
        """
        ids = self.tokenize(tokens) if isinstance(tokens, str) else _ids(tokens)
        with self._alone():
            return _core.Sequence(self._core, core_of(plan), len(ids)).append_scored(ids)

    def evaluate(self, text: str | os.PathLike[str],
                 plans: Plan | SequenceOf[Plan] | Mapping[str, Plan] = (), *, max_windows: int = 0,
                 separator: str = "<|endoftext|>",
                 progress: Callable[[int], Any] | None = None) -> Evaluation:
        """Perplexity of a text file, and what plans lose against exact attention on the same tokens.

        Args:
            text: path of a text file.
            plans: one, several, or several by name.
            max_windows: of the model's context each; 0: the whole text.
            separator: what parts documents in the file; empty for none.
            progress: called after each window with how many are done.

        Returns:
            A dict of perplexity, loss, n_tokens, n_windows and, for each plan, perplexity,
            perplexity_ratio, kl (nats per token), kl_p99, top1_agreement, keys_read and
            cache_bytes_share. ``rows()`` makes a table of it, ``report()`` a page.
        """
        if isinstance(plans, Plan):
            plans = [plans]
        named = dict(plans) if isinstance(plans, Mapping) else {
            f"plan {i}": plan for i, plan in enumerate(plans, 1)}
        options = {"max_windows": max_windows, "separator": separator, "progress": progress}
        with self._alone():
            found = _core.evaluate(self._core, os.fspath(text),
                                   [core_of(plan) for plan in named.values()], options)
        return evaluation_of(found, list(named))

    def analyze(self, text: str | os.PathLike[str], *, taus: SequenceOf[float] = (0.3,), context: int = 0,
                max_windows: int = 4, separator: str = "<|endoftext|>",
                progress: Callable[[float], Any] | None = None) -> Analysis:
        """Which tokens of a text represent the others, at every layer.

        Args:
            text: path of a text file.
            taus: tokens of cosine 1 - tau^2 or more are redundant.
            context: tokens of a window; 0: 512, or the model's where it has fewer.
            max_windows: of the text, from its beginning.
            separator: what parts documents in the file; empty for none.
            progress: called with the share done.

        Returns:
            A dict as ``sluice analyze --json`` writes it (docs/results.md). ``rows()`` has a line for
            each tau, layer and rule.
        """
        options = {"taus": [float(tau) for tau in taus], "context": context, "max_windows": max_windows,
                   "separator": separator, "progress": progress}
        with self._alone():
            return analysis_of(_core.analyze(self._core, os.fspath(text), options))

    def tune(self, text: str | os.PathLike[str], *, max_kl: float | None = None,
             max_ppl_ratio: float | None = None, max_kl_p99: float | None = None,
             max_kl_p999: float | None = None, objective: str = "prefill", mode: str = "refine",
             context: int = 0, n_windows: int = 8, n_held_out: int = 16, needles: bool = True,
             seed: int = 0, separator: str = "<|endoftext|>",
             measurements: str | os.PathLike[str] | None = None,
             progress: Callable[[float, str], Any] | None = None) -> dict[str, Any]:
        """From a loss that is accepted to the plan that saves most within it. Takes minutes to hours.

        Args:
            text: path of a text file with several documents.
            max_kl: nats per token that may be lost; this or ``max_ppl_ratio`` is needed.
            max_ppl_ratio: perplexity as a multiple of dense's.
            max_kl_p99, max_kl_p999: of 99% and 99.9% of the tokens.
            objective: "prefill", "decode", "memory", "reads" or "decode-reads".
            mode: "refine", or "keys", which "memory" needs.
            context, n_windows, n_held_out, seed, separator: of the text.
            needles: a plan that loses a fact which dense finds does not hold.
            measurements: a file with which an interrupted run goes on.
            progress: called with the share done and what is done now.

        Returns:
            A dict: "plan" (a :class:`Plan`), "dense_because", "calibration" and "held_out" (losses),
            "seconds".
        """
        options: dict[str, Any] = {
            "max_kl": max_kl, "max_ppl_ratio": max_ppl_ratio, "max_kl_p99": max_kl_p99,
            "max_kl_p999": max_kl_p999, "objective": objective, "mode": mode, "context": context,
            "n_windows": n_windows, "n_held_out": n_held_out, "needles": needles, "seed": seed,
            "separator": separator, "progress": progress,
            "measurements": "" if measurements is None else os.fspath(measurements)}
        with self._alone():
            found = _core.tune(self._core, os.fspath(text), options)
        found["plan"] = Plan._of(found["plan"])
        return found


class Sequence:
    """A text that a model has read so far: prefill and decode with a cache."""

    def __init__(self, model: Model, *, plan: Plan | None = None, capacity: int = 0) -> None:
        """An empty one, of at most ``capacity`` tokens; 0: the model's context."""
        self._model = model
        self._core = _core.Sequence(model._core, core_of(plan), capacity)

    def append(self, tokens: npt.ArrayLike) -> None:
        """Reads tokens after those before: a prompt at once, in pieces, or token by token."""
        ids = _ids(np.atleast_1d(tokens))
        with self._model._alone():
            self._core.append(ids)

    def append_scored(self, tokens: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """The same; returns the logits after every one of them, (n_tokens, vocab), without a copy."""
        ids = _ids(np.atleast_1d(tokens))
        with self._model._alone():
            return self._core.append_scored(ids)

    def logits(self) -> npt.NDArray[np.float32]:
        """(vocab), after the last token: a copy, which later calls leave alone."""
        return self._core.logits()

    def __len__(self) -> int:
        return self._core.length

    @property
    def capacity(self) -> int:
        """Tokens that there is room for."""
        return self._core.capacity

    def clear(self) -> None:
        """Forgets everything."""
        self._core.clear()

    def truncate(self, length: int) -> None:
        """Forgets the tokens from ``length`` on; with a plan that is not dense, all or none."""
        self._core.truncate(length)
