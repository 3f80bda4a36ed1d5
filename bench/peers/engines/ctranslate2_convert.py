"""Writes a GGUF file of the llama family as a CTranslate2 model with int8 weights.

    python -m engines.ctranslate2_convert MODEL.gguf FOLDER

A process of its own, so that the expanded weights are gone before anything is timed. Tokens are named
by their numbers: the vocabulary is not needed.
"""

import pathlib
import sys

import torch
from ctranslate2.converters.transformers import LlamaLoader

from engines.pytorch_engine import load


def token_name(token):
    return f"t{token}"


class NumberedTokens:
    """What the converter asks a tokenizer for. The names of special tokens match no number, so that
    no answer ends before its length."""

    bos_token, eos_token, unk_token = "<begin>", "<end>", "<unknown>"

    def __init__(self, vocab):
        self.vocab = vocab

    def get_vocab(self):
        return {token_name(token): token for token in range(self.vocab)}


def main():
    path, folder = (pathlib.Path(word) for word in sys.argv[1:])
    model = load(path, torch.float32)
    model.config.quantization_config = None  # the weights are expanded, the converter would refuse
    spec = LlamaLoader()(model, NumberedTokens(model.config.vocab_size))
    spec.validate()
    spec.optimize(quantization="int8")
    made = folder.with_name(folder.name + ".part")
    made.mkdir(exist_ok=True)
    spec.save(str(made))
    made.rename(folder)


if __name__ == "__main__":
    main()
