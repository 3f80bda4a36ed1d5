"""llama.cpp by the C functions that llama-cpp-python exposes."""

import ctypes

import llama_cpp as llama
import numpy as np

from engines import Stepping

weights = "as stored"
PASS_TOKENS = 2048  # n_batch of llama-bench; it goes on in pieces of 512, the library's default


def versions():
    system = llama.llama_print_system_info().decode()
    return {"llama-cpp-python": llama.__version__,
            "built with": system.replace("\n", " ").strip(" |")}


class Engine(Stepping):
    def __init__(self, path, threads, context, variant):
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(
            str(path).encode(), llama.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self.vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch = context, PASS_TOKENS
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = (llama.LLAMA_FLASH_ATTN_TYPE_ENABLED if variant == "flash"
                                  else llama.LLAMA_FLASH_ATTN_TYPE_DISABLED)
        params.no_perf = True
        self.context = llama.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp makes no context of {context} tokens")
        self.known = 0  # tokens of the cache that are benchmark tokens

    def truncate(self, n):
        memory = llama.llama_get_memory(self.context)
        if not llama.llama_memory_seq_rm(memory, 0, n, -1):
            raise RuntimeError("the cache cannot be truncated")
        self.known = min(self.known, n)

    def read(self, tokens):
        """Appends tokens to the cache; the scores of the last follow from it."""
        for begin in range(0, len(tokens), PASS_TOKENS):
            piece = tokens[begin:begin + PASS_TOKENS]
            array = (llama.llama_token * len(piece))(*piece)
            # Without positions a batch goes on where the cache ends, and the last token has scores.
            status = llama.llama_decode(self.context,
                                        llama.llama_batch_get_one(array, len(piece)))
            if status != 0:
                raise RuntimeError(f"llama_decode: status {status}")
        llama.llama_synchronize(self.context)

    def likeliest(self):
        scores = llama.llama_get_logits_ith(self.context, -1)
        address = ctypes.cast(scores, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(address, (self.vocab,)).argmax())

    def greedy(self, tokens, n):
        self.truncate(0)
        self.read(tokens)
        answer = [self.likeliest()]
        while len(answer) < n:
            self.read(answer[-1:])
            answer.append(self.likeliest())
        return answer
