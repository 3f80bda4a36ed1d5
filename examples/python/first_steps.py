"""First steps: a text, its tokens, the loss and the reads of a plan, and a report of them.

    python examples/python/first_steps.py [MODEL [TEXT]]

MODEL is a Hugging Face folder or a .gguf file, TEXT a text file; both have defaults that come with the
package. Each part between lines of `# %%` is a cell of a notebook, for editors that know them.
"""

# %% A model. Nothing is downloaded.
import sys

import sluice

model_path = sys.argv[1] if len(sys.argv) > 1 else sluice.demo_model()
text_path = sys.argv[2] if len(sys.argv) > 2 else sluice.demo_text()
model = sluice.Model.from_pretrained(model_path, context=1024)
print(model)

# %% Text after a prompt, whole and token by token.
print(repr(model.generate("The sea was", max_tokens=20)))
for token in model.stream("The sea was", max_tokens=5):
    print(f"{token.id:6} {token.text!r}")

# %% Logits as a NumPy array: the three likeliest next tokens.
logits = model.logits("The sea was")[-1]
for token in logits.argsort()[::-1][:3]:
    print(f"{logits[token]:8.2f} {model.detokenize([token])!r}")

# %% What refined attention reads of the keys, and what it loses, on the same tokens in the same run.
plans = {f"delta {delta}": sluice.Plan.uniform("refine", delta=delta) for delta in (0.01, 0.1)}
found = model.evaluate(text_path, plans, max_windows=1)
for row in found.rows()[1:]:  # pandas.DataFrame(found.rows()) makes a table of it
    print(f"{row['plan']}: {row['keys_read']:.0%} of the keys, KL {row['kl']:.4f} ± {row['kl_stderr']:.4f} nats")

# %% All of it as one page; in a notebook `found` shows as the page.
print(found.report("report.html"))
