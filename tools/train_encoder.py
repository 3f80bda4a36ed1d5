#!/usr/bin/env python3
"""Trains a small encoder on a text that it makes itself: minutes on two cores.

    python3 tools/train_encoder.py records|proteins -o FOLDER [--steps 700]

records: a BERT on delivery records, whose sentences repeat with other numbers and names.
proteins: an ESM-2 on sequences of a seeded grammar: motifs repeated in tandem with rare substitutions,
and linkers of random residues. FOLDER gets a Hugging Face checkpoint in bf16 with its tokenizer,
held-out.txt, text of the same kind that training never saw, and training.json: the masked loss and
accuracy there.

Needs torch, transformers and tokenizers (tools/requirements-golden.txt has versions that work).
"""

import argparse
import json
import pathlib
import random
import time

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForMaskedLM, EsmConfig, EsmForMaskedLM

SEED, TOKENS_A_STEP, MASK_SHARE = 7, 1024, 0.15
CONTEXT = {"records": 512, "proteins": 2048}
RESIDUES = "LAGVSERTIDPKQNFYMHWC"
ESM_VOCAB = ["<cls>", "<pad>", "<eos>", "<unk>", *RESIDUES, *"XBUZO.-", "<null_1>", "<mask>"]


def records(rng, n_characters):
    """Delivery records of one form: three sentences, whose name, town, good and number agree."""
    goods = ["apples", "pears", "plums", "figs", "nuts", "olives", "lemons", "grapes"]
    towns = ["lyon", "turin", "porto", "bonn", "gent", "basel", "delft", "graz"]
    names = ["anna", "boris", "clara", "dario", "edith", "felix", "greta", "hugo"]
    parts, length = [], 0
    while length < n_characters:
        number, name = rng.randrange(10, 42), rng.choice(names)
        town, good = rng.choice(towns), rng.choice(goods)
        parts.append(f"order {number} : {good} for {name} in {town} .\n"
                     f"{name} in {town} has paid for order {number} .\n"
                     f"the {good} have left the store for {town} .\n")
        length += len(parts[-1])
    return "".join(parts)


def proteins(rng, n_characters):
    """Residues: motifs of a fixed library, each repeated in tandem with rare substitutions, and short linkers."""
    library_rng = random.Random(SEED)
    library = ["".join(library_rng.choices(RESIDUES, k=library_rng.randrange(6, 13))) for _ in range(12)]
    parts, length = [], 0
    while length < n_characters:
        unit = rng.choice(library)
        repeats = "".join(unit for _ in range(rng.randrange(3, 9)))
        mutated = "".join(rng.choice(RESIDUES) if rng.random() < 0.02 else residue for residue in repeats)
        parts.append(mutated + "".join(rng.choices(RESIDUES, k=rng.randrange(0, 5))))
        length += len(parts[-1])
    return "".join(parts)


def record_tokenizer(text):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(text.splitlines(), trainers.WordPieceTrainer(vocab_size=256, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")])
    return tokenizer


@torch.no_grad()
def start_positions(table):
    """Sines and cosines: from there neighbours are found in far fewer steps than from noise."""
    angle = torch.arange(len(table))[:, None] / 1000.0 ** (torch.arange(0, table.shape[1], 2) / table.shape[1])
    table[:, 0::2], table[:, 1::2] = 0.1 * torch.sin(angle), 0.1 * torch.cos(angle)


def setup(kind, text, folder):
    """The model, ids of a text, and first, last and mask id; writes the tokenizer."""
    sizes = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=192,
                 hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    if kind == "records":
        tokenizer = record_tokenizer(text)
        tokenizer.save(str(folder / "tokenizer.json"))
        names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
        (folder / "tokenizer_config.json").write_text(json.dumps(names) + "\n")
        # At the usual 0.02 a post-norm model of this width stays at the frequencies of words for long.
        config = BertConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=CONTEXT[kind],
                            initializer_range=0.1, **sizes)
        marks = [tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]", "[MASK]")]
        model = BertForMaskedLM(config)
        start_positions(model.bert.embeddings.position_embeddings.weight)
        return model, lambda part: tokenizer.encode(part, add_special_tokens=False).ids, marks
    (folder / "vocab.txt").write_text("\n".join(ESM_VOCAB) + "\n")
    mask = ESM_VOCAB.index("<mask>")
    config = EsmConfig(vocab_size=len(ESM_VOCAB), max_position_embeddings=CONTEXT[kind] + 2, pad_token_id=1,
                       mask_token_id=mask, position_embedding_type="rotary", token_dropout=True,
                       emb_layer_norm_before=False, layer_norm_eps=1e-5, **sizes)
    return EsmForMaskedLM(config), lambda part: [ESM_VOCAB.index(c) for c in part], [0, 2, mask]


def masked_batch(ids, length, marks, generator):
    """Windows of a text with its ends marked, some tokens masked -> inputs, labels (-100: shown)."""
    first, last, mask = marks
    n = max(TOKENS_A_STEP // length, 1)
    begin = torch.randint(0, len(ids) - length, (n, 1), generator=generator)
    inputs = ids[begin + torch.arange(length)]
    inputs[:, 0], inputs[:, -1] = first, last
    hidden = torch.rand(inputs.shape, generator=generator) < MASK_SHARE
    hidden[:, 0] = hidden[:, -1] = False
    labels = torch.where(hidden, inputs, -100)
    return torch.where(hidden, mask, inputs), labels


def train(model, ids, marks, context, n_steps, rate):
    """Windows of 64 tokens to a context, short ones mostly."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.01)
    generator, lengths, start = torch.Generator().manual_seed(SEED), random.Random(SEED), time.time()
    for step in range(n_steps):
        length = lengths.choices([64, 128, 512, context], weights=[12, 6, 1, 1])[0]
        inputs, labels = masked_batch(ids, length, marks, generator)
        loss = model(input_ids=inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 100) * min(1, 2 * (1 - step / n_steps))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 99:
            print(f"step {step + 1}, {time.time() - start:.0f} s, loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def held_out(model, ids, marks, context):
    generator, losses, right = torch.Generator().manual_seed(SEED + 1), [], []
    for length in [128] * 8 + [context] * 8:
        inputs, labels = masked_batch(ids, length, marks, generator)
        found = model(input_ids=inputs, labels=labels)
        losses.append(found.loss.item())
        right.append((found.logits.argmax(-1) == labels)[labels >= 0].float().mean().item())
    return sum(losses) / len(losses), sum(right) / len(right)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["records", "proteins"])
    parser.add_argument("-o", "--output", required=True, type=pathlib.Path, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=700, help="of 1,024 tokens or more, default %(default)s")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    options.output.mkdir(parents=True, exist_ok=True)
    make = {"records": records, "proteins": proteins}[options.kind]
    text, unseen = make(random.Random(SEED), 1_000_000), make(random.Random(SEED + 1), 100_000)
    (options.output / "held-out.txt").write_text(unseen)
    rate = {"records": 1e-3, "proteins": 2e-3}[options.kind]
    model, encode, marks = setup(options.kind, text, options.output)
    context = CONTEXT[options.kind]
    train(model, torch.tensor(encode(text)), marks, context, options.steps, rate)
    model.eval()
    loss, accuracy = held_out(model, torch.tensor(encode(unseen)), marks, context)
    model.to(torch.bfloat16).save_pretrained(options.output)
    figures = {"masked_loss": loss, "masked_accuracy": accuracy, "n_steps": options.steps}
    (options.output / "training.json").write_text(json.dumps(figures) + "\n")
    print(figures)


if __name__ == "__main__":
    main()
