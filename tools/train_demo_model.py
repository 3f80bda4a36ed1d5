#!/usr/bin/env python3
"""Trains a small GPT-2 from a text file, as the demo's checkpoint was trained: minutes on one GPU.

    python3 tools/train_demo_model.py TEXT -o FOLDER [--seconds 270] [--held-out FILE]

TEXT holds documents parted by <|endoftext|>. Without --held-out, one document in a hundred is kept
away from training (the last twentieth of the text where it is a single document). FOLDER gets a
Hugging Face checkpoint in bf16 with its tokenizer, and training.json: the held-out loss (in bf16
arithmetic, before the weights are rounded to bf16) and how it was reached. `sluice eval -m FOLDER
-f FILE -c 2048 --dtype bf16` finds it to about 0.001.

Needs torch, transformers and tokenizers (tools/requirements-golden.txt has versions that work).
"""

import argparse
import json
import math
import pathlib
import random
import sys
import time

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

SEPARATOR = "<|endoftext|>"
SEED = 7


def documents_of(path):
    text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
    return [document for part in text.split(SEPARATOR) if (document := part.strip("\n"))]


def part_documents(documents):
    """Training and held-out documents."""
    if len(documents) > 1:
        shuffled = random.Random(SEED).sample(documents, len(documents))
        n_held_out = max(1, len(documents) // 100)
        return shuffled[n_held_out:], shuffled[:n_held_out]
    cut = len(documents[0]) * 19 // 20
    return [documents[0][:cut]], [documents[0][cut:]]


def train_tokenizer(documents, vocab):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        documents,
        trainers.BpeTrainer(vocab_size=vocab, min_frequency=2, special_tokens=[SEPARATOR],
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def token_stream(tokenizer, documents):
    """One array of ids, every document begun by the separator."""
    separator = [tokenizer.token_to_id(SEPARATOR)]
    pieces = []
    for encoding in tokenizer.encode_batch(documents):
        pieces += [separator, encoding.ids]
    return np.concatenate(pieces).astype(np.int32)


def learning_rate(peak, step, share_of_time):
    """Warm up over 200 steps, hold for half of the time, then fall to a fiftieth."""
    fall = 1.0 if share_of_time < 0.5 else max(0.02, 2 * (1 - share_of_time))
    return peak * min(1.0, (step + 1) / 200) * fall


def mean_loss(model, batch):
    with torch.autocast("cuda", torch.bfloat16):
        scores = model(input_ids=batch[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(scores.float().flatten(0, 1), batch[:, 1:].flatten())


def train(model, stream, options):
    """Trains for options.seconds; returns the number of steps."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]  # not biases and norms
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95), fused=True)
    tokens = torch.from_numpy(stream).cuda()
    places = torch.Generator(device="cuda").manual_seed(SEED)
    window = torch.arange(options.context + 1, device="cuda")
    compiled = torch.compile(model)

    def step(rate):
        first = torch.randint(0, len(tokens) - options.context, (options.batch, 1), device="cuda",
                              generator=places)
        loss = mean_loss(compiled, tokens[first + window].long())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(3):  # compiles, outside the clock
        step(0.0)
    torch.cuda.synchronize()
    start, n_steps = time.time(), 0
    while (share := (time.time() - start) / options.seconds) < 1:
        loss = step(learning_rate(options.rate, n_steps, share))
        n_steps += 1
        if n_steps % 200 == 0:
            print(f"step {n_steps}, {share:.0%} of the time, loss {loss.item():.3f}", flush=True)
    return n_steps


@torch.no_grad()
def held_out_loss(model, stream, context):
    """Over the first 200 windows, as `sluice eval -c CONTEXT --windows 200` cuts them."""
    tokens = torch.from_numpy(stream).long().cuda()
    total, count = 0.0, 0
    for first in range(0, min(len(tokens) - 1, 200 * context), context):
        window = tokens[first:first + context + 1][None]
        n = window.shape[1] - 1
        total += mean_loss(model, window).item() * n
        count += n
    return total / count


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("-o", "--output", required=True, help="folder of the checkpoint")
    parser.add_argument("--held-out", help="a file to measure the loss on, in place of a part of TEXT")
    parser.add_argument("--seconds", type=float, default=270, help="of training, default %(default)s")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=6144)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-3, help="largest learning rate")
    return parser.parse_args()


def main():
    options = parse_arguments()
    if not torch.cuda.is_available():
        sys.exit("train_demo_model: no GPU here, and on a CPU this would take days")
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")

    documents = documents_of(options.text)
    if not documents:
        sys.exit(f"train_demo_model: {options.text} has no text")
    training, held_out = (documents, documents_of(options.held_out)) if options.held_out \
        else part_documents(documents)
    tokenizer = train_tokenizer(training, options.vocab)
    stream = token_stream(tokenizer, training)
    if len(stream) <= options.context:
        sys.exit(f"train_demo_model: {len(stream)} tokens are fewer than a window of {options.context}")
    print(f"{len(training)} documents, {len(stream)} tokens to train on", flush=True)

    separator = tokenizer.token_to_id(SEPARATOR)
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), n_positions=options.context, n_embd=options.width,
        n_layer=options.layers, n_head=options.heads, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=separator, eos_token_id=separator)).cuda()
    n_steps = train(model, stream, options)
    model.eval()
    loss = held_out_loss(model, token_stream(tokenizer, held_out), options.context)
    print(f"held-out loss {loss:.4f} nats per token, perplexity {math.exp(loss):.2f}")

    folder = pathlib.Path(options.output)
    model.to(torch.bfloat16).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=SEPARATOR, eos_token=SEPARATOR,
                            model_max_length=options.context).save_pretrained(folder)
    (folder / "training.json").write_text(json.dumps(
        {"family": "gpt2", "eval_loss": loss, "tokens": n_steps * options.batch * options.context,
         "params": sum(p.numel() for p in model.parameters()), "seconds": options.seconds,
         "batch": options.batch, "lr": options.rate}, indent=1) + "\n")


main()
