"""PyTorch with transformers, which expands a GGUF file while loading."""

import importlib.metadata
import pathlib

import torch
import transformers

from engines import Stepping

weights = "expanded to bf16"


def versions():
    return {name: importlib.metadata.version(name) for name in ("torch", "transformers")}


def load(path, dtype):
    path = pathlib.Path(path)
    return transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=dtype).eval()


class Engine(Stepping):
    def __init__(self, path, threads, context, variant):
        del context  # its cache grows
        torch.set_num_threads(threads)
        self.model = load(path, getattr(torch, variant))
        self.vocab = self.model.config.vocab_size
        self.truncate(0)

    def truncate(self, n):
        if n == 0:
            self.cache, self.known = transformers.DynamicCache(), 0
        else:
            surplus = self.cache.get_seq_length() - n
            if surplus > 0:
                self.cache.crop(-surplus)  # negative: so many of its last
            self.known = min(self.known, n)

    @torch.inference_mode()
    def read(self, tokens):
        """Appends tokens to the cache; the scores after the last."""
        return self.model(torch.tensor([tokens]), past_key_values=self.cache, use_cache=True,
                          logits_to_keep=1).logits[0, -1]

    def greedy(self, tokens, n):
        self.truncate(0)
        answer = [int(self.read(tokens).argmax())]
        while len(answer) < n:
            answer.append(int(self.read(answer[-1:]).argmax()))
        return answer
