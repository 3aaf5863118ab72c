"""A Llama decoder in PyTorch, small and plain, with the tensors' names of `transformers`.

Its own code because training wants positions that jump and the loss only where something is asked. `tools/check_recall.py`
compares what it computes with `transformers`.
"""

import math
from dataclasses import asdict, dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Shape:
    vocabulary: int
    width: int = 128
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    hidden: int = 256
    rope_theta: float = 1e9
    epsilon: float = 1e-5

    def as_dict(self):
        return asdict(self)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)
        self.q_proj = linear(shape.width, shape.heads * shape.head_dim)
        self.k_proj = linear(shape.width, shape.kv_heads * shape.head_dim)
        self.v_proj = linear(shape.width, shape.kv_heads * shape.head_dim)
        self.o_proj = linear(shape.heads * shape.head_dim, shape.width)

    def forward(self, x, turn):
        batch, length, _ = x.shape
        split = lambda y: y.view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
        q, k, v = turned(split(self.q_proj(x)), turn), turned(split(self.k_proj(x)), turn), split(self.v_proj(x))
        group = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down_proj = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.epsilon)

    def forward(self, x, turn):
        x = x + self.self_attn(self.input_layernorm(x), turn)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.epsilon)

    def forward(self, words, positions):
        """The last hidden state of every word: [batch, length, width]."""
        turn = turns(self.shape, positions)
        x = self.embed_tokens(words)
        for layer in self.layers:
            x = layer(x, turn)
        return self.norm(x)


class Recall(nn.Module):
    """The decoder with its output layer, which is its embedding."""

    def __init__(self, shape):
        super().__init__()
        self.model = Decoder(shape)

    @property
    def shape(self):
        return self.model.shape

    def forward(self, words, positions, asked):
        """Logits at the places of `asked`, numbers into the flattened [batch, length]."""
        states = self.model(words, positions).flatten(0, 1)
        return states[asked] @ self.model.embed_tokens.weight.T


def turns(shape, positions):
    """Cosine and sine of RoPE for positions [batch, length]: each [batch, 1, length, head_dim]."""
    pairs = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=positions.device) / shape.head_dim
    angles = positions.float()[..., None] * shape.rope_theta**-pairs
    angles = torch.cat([angles, angles], -1)[:, None]
    return angles.cos(), angles.sin()


def turned(x, turn):
    cosine, sine = turn
    a, b = x.chunk(2, -1)
    return x * cosine + torch.cat([-b, a], -1) * sine


@torch.no_grad()
def start(model, mimetic):
    """Fill the weights. `mimetic` gives attention a start that looks for what is equal, and copies it.

    After Trockman and Kolter, https://arxiv.org/abs/2305.09828: in all layers but the first the queries' weights are those of
    the keys, and the output's are the transposed values'. The first layer stays random: what it fetches from neighbours must
    not look like the words themselves.
    """
    shape = model.shape
    for name, tensor in model.named_parameters():
        if "norm" in name:
            tensor.fill_(1)
        elif "embed" in name:
            tensor.normal_(0, shape.width**-0.5)
        else:
            tensor.normal_(0, tensor.shape[1] ** -0.5)
            if "o_proj" in name or "down_proj" in name:
                tensor.mul_((2 * shape.layers) ** -0.5)
    if mimetic:
        for layer in model.model.layers[1:]:
            look_for_equals(layer.self_attn)


def look_for_equals(attention):
    shape = attention.shape
    group = shape.heads // shape.kv_heads
    by_group = lambda weight: weight.view(shape.kv_heads, shape.head_dim, -1).repeat_interleave(group, 0).flatten(0, 1)
    keys, values = attention.k_proj.weight, attention.v_proj.weight
    nn.init.orthogonal_(keys)
    nn.init.orthogonal_(values)
    noise = lambda weight: 0.3 * torch.randn_like(weight) * math.sqrt(1 / shape.width)
    attention.q_proj.weight.copy_(by_group(keys) + noise(attention.q_proj.weight))
    attention.o_proj.weight.copy_((by_group(values) / group).T + noise(attention.o_proj.weight))
