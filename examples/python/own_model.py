"""Your own model of transformers: refined attention in it, a delta for a loss that you accept, and a comparison.

    python examples/python/own_model.py [MODEL [TEXT [MAX_KL]]]

MODEL is a folder of a causal model of transformers, TEXT a text file; both have defaults that come with
the package. MAX_KL: nats per token that may be lost, 0.02. Needs torch and transformers.
"""

# %% A model of transformers, on the CPU, and the ids of a text.
import pathlib
import sys
import time

import torch
import transformers

import sluice
import sluice.hf

path = sys.argv[1] if len(sys.argv) > 1 else sluice.demo_model()
text = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else sluice.demo_text()).read_text(encoding="utf-8")
max_kl = float(sys.argv[3]) if len(sys.argv) > 3 else 0.02
model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(path)
ids = tokenizer(text, return_tensors="pt").input_ids
half = ids.shape[1] // 2

# %% A delta that keeps the contract, from the first half of the text.
tuned = sluice.hf.tune(model, [ids[:, :half]], max_kl=max_kl)
print(f"delta {tuned['delta']:g}: KL {tuned['kl']:.4f} ± {tuned['kl_stderr']:.4f} nats, "
      f"{tuned['keys_read']:.0%} of the keys read")

# %% The second half, with transformers' own attention and with ours.
def read(ids):
    with torch.no_grad():
        begin = time.perf_counter()
        logits = model(ids).logits
        return logits.log_softmax(-1), time.perf_counter() - begin


held_out = ids[:, half:]
own, own_seconds = read(held_out)
with sluice.hf.enable(model, delta=tuned["delta"]) as enabled:
    ours, seconds = read(held_out)
    shares = enabled.keys_read().values()
kl = (own.exp() * (own - ours)).sum(-1).mean()
print(f"held out: KL {kl:.4f} nats, {sum(shares) / len(shares):.0%} of the keys read, "
      f"{held_out.shape[1]} tokens in {seconds:.2f} s, with sdpa in {own_seconds:.2f} s")

# %% generate() is transformers' own.
sluice.hf.enable(model, delta=tuned["delta"])
answer = model.generate(held_out[:, :64], max_new_tokens=20, do_sample=False)
print(repr(tokenizer.decode(answer[0, 64:])))
