"""OpenVINO GenAI, which reads GGUF files and generates by itself."""

import importlib.metadata
import platform

import numpy as np
import openvino
import openvino_genai

from engines import Generating, Stopwatch

weights = "as its reader makes them of the file"
# By default the Arm plugin computes in f16, and refuses the products with compressed weights.
PRECISION = {"INFERENCE_PRECISION_HINT": "f32"} if platform.machine() == "aarch64" else {}


def scheduler():
    """On x86 its scheduler keeps the prompts of earlier samples; none may be read from there."""
    if platform.machine() == "aarch64":
        return {}
    config = openvino_genai.SchedulerConfig()
    config.enable_prefix_caching = False
    return {"scheduler_config": config}


def versions():
    return {name: importlib.metadata.version(name) for name in ("openvino", "openvino-genai")}


class Engine(Generating):
    def __init__(self, path, threads, context, variant):
        del context, variant
        self.pipeline = openvino_genai.LLMPipeline(
            str(path), "CPU", INFERENCE_NUM_THREADS=threads, PERFORMANCE_HINT="LATENCY",
            ENABLE_CPU_PINNING=False, **PRECISION, **scheduler())
        self.vocab = len(self.pipeline.get_tokenizer().get_vocab())

    def generate(self, tokens, n):
        """The n tokens that follow, and when each came, in ms."""
        answer, times = [], []
        config = openvino_genai.GenerationConfig()
        # A minimum of tokens would forbid the end token; ignore_eos lets it come and goes on.
        config.max_new_tokens, config.ignore_eos, config.do_sample = n, True, False
        config.apply_chat_template = False
        ids = np.array([tokens], dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(
            openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        watch = Stopwatch()

        class Taker(openvino_genai.StreamerBase):
            def write(self, token):
                new = token if isinstance(token, list) else [token]
                times.extend([watch.ms()] * len(new))
                answer.extend(new)
                return openvino_genai.StreamingStatus.RUNNING

            def end(self):
                pass

        self.pipeline.generate(inputs, config, Taker())
        if len(answer) != n:
            raise RuntimeError(f"{len(answer)} tokens came, {n} were asked for")
        return answer, times
