"""GPT-2, GPT-J and OPT of safetensors in bf16 as plain NumPy in float64: the parts of a block, without attention."""

import json

import numpy as np

# Stem of a layer, its norms, projections, MLP, and the final norm.
NAMES = {
    "gpt2": ("transformer.h.{}.", "ln_1", "ln_2", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "transformer.ln_f"),
    "gptj": ("transformer.h.{}.", "ln_1", None, "attn.out_proj", "mlp.fc_in", "mlp.fc_out", "transformer.ln_f"),
    "opt": ("model.decoder.layers.{}.", "self_attn_layer_norm", "final_layer_norm", "self_attn.out_proj",
            "fc1", "fc2", "model.decoder.final_layer_norm"),
}


class Model:
    def __init__(self, folder):
        config = json.loads((folder / "config.json").read_text())
        data = (folder / "model.safetensors").read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        self.w, self.kind = {}, config["model_type"]
        for name, entry in json.loads(data[8:begin]).items():
            if name != "__metadata__":
                assert entry["dtype"] == "BF16"
                first, last = entry["data_offsets"]
                bits = np.frombuffer(data[begin + first:begin + last], np.uint16).astype(np.uint32) << 16
                self.w[name] = bits.view(np.float32).astype(np.float64).reshape(entry["shape"])
        self.n_layers = config.get("n_layer") or config["num_hidden_layers"]
        self.n_heads = config.get("n_head") or config["num_attention_heads"]
        self.rotary = config.get("rotary_dim", 0)
        self.names = NAMES[self.kind]

    def norm(self, name, x):
        x = x - x.mean(1, keepdims=True)
        return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * self.w[name + ".weight"] + self.w[name + ".bias"]

    def linear(self, name, x):
        weight = self.w[name + ".weight"]
        return x @ (weight if self.kind == "gpt2" else weight.T) + self.w.get(name + ".bias", 0)

    def embed(self, ids):
        if self.kind == "opt":
            places = self.w["model.decoder.embed_positions.weight"][2:2 + len(ids)]
            return self.w["model.decoder.embed_tokens.weight"][ids] + places
        x = self.w["transformer.wte.weight"][ids]
        return x + self.w["transformer.wpe.weight"][:len(ids)] if self.kind == "gpt2" else x

    def rotate(self, x):
        angle = np.arange(len(x))[:, None, None] * 10000.0 ** (-np.arange(0, self.rotary, 2) / max(self.rotary, 1))
        a, b, out = x[..., :self.rotary:2], x[..., 1:self.rotary:2], x.copy()
        out[..., :self.rotary:2] = a * np.cos(angle) - b * np.sin(angle)
        out[..., 1:self.rotary:2] = b * np.cos(angle) + a * np.sin(angle)
        return out

    def qkv(self, stem, x):
        if self.kind == "gpt2":
            parts = np.split(self.linear(stem + "attn.c_attn", x), 3, axis=1)
        else:
            block = stem + ("attn." if self.kind == "gptj" else "self_attn.")
            parts = [self.linear(block + part, x) for part in ("q_proj", "k_proj", "v_proj")]
        q, k, v = (part.reshape(len(x), self.n_heads, -1) for part in parts)
        return (self.rotate(q), self.rotate(k), v) if self.rotary else (q, k, v)

    def mlp(self, stem, x):
        x = self.linear(stem + self.names[4], x)
        x = np.maximum(x, 0) if self.kind == "opt" else 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
        return self.linear(stem + self.names[5], x)

    def loss(self, x, ids):
        table = self.w["model.decoder.embed_tokens.weight" if self.kind == "opt" else "transformer.wte.weight"]
        scores = self.norm(self.names[6], x[:-1]) @ table.T + self.w.get("lm_head.bias", 0)
        scores -= scores.max(1, keepdims=True)
        return float((np.log(np.exp(scores).sum(1)) - scores[np.arange(len(ids) - 1), ids[1:]]).mean())
