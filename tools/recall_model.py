"""A Llama decoder in PyTorch, small and plain, with the tensors' names of `transformers`.

Its own code because training wants positions that jump and the loss only where something is asked. `tools/check_recall.py`
compares what it computes with `transformers`.
"""

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
def start(model, plain):
    """Fill the weights: all at random, or with a start that is fit for recall, after the mimetic initialization of Trockman
    and Kolter, https://arxiv.org/abs/2305.09828. Training is free to change all of it.

    Words start in the first half of the state. The first layer looks at the few words before, and puts them in the second half.
    The second looks for places whose second halves are alike, far or near, and adds the words there to the first: what came
    after the same words. The third looks for the same word, and adds the second half there: what came before it. Then in turn.
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
                tensor.mul_(0.1)  # The state starts as the word, about 1 long.
    if not plain:
        words_in_first_half(model.model.embed_tokens.weight)
        look_back(model.model.layers[0].self_attn)
        for i, layer in enumerate(model.model.layers[1:]):
            look_for_equals(layer.self_attn, forward=i % 2 == 0)


CONSTANT = 0.5  # What all words have in common at the start, in the state's first number: a word has a length of about 1.
OFFSETS = [(1, 1.0), (2, 1.0), (3, 0.6), (5, 0.3)]  # Of the first layer's heads: where they look, and their highest frequency.
FARTHEST_TURN = 1e-3  # Radians a token: pairs that turn faster than that cannot compare words far apart.


def words_in_first_half(words):
    half = words.shape[1] // 2
    words[:, :half].mul_(2**0.5)
    words[:, half:].mul_(0.1)
    words[:, 0] = CONSTANT


def frequencies(shape):
    return shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)


def look_back(attention):
    """Head h looks OFFSETS[h] words back, whatever they are, and copies the first half of the state to the second."""
    shape, turn = attention.shape, frequencies(attention.shape)
    for weight in [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight, attention.o_proj.weight]:
        weight.mul_(0.1)
    common = CONSTANT / 1.1 * shape.width**0.5  # What the norm makes of the constant.
    pairs, half = shape.head_dim // 2, shape.width // 2
    by_head = lambda weight: weight.view(-1, shape.head_dim, shape.width)
    near = turn > 0.005
    by_head(attention.k_proj.weight)[:, :pairs, 0] += near / common
    values = [nn.init.orthogonal_(torch.empty(shape.head_dim, half)) for _ in range(shape.kv_heads)]
    for value in values:
        value[:, 0] = 0  # The constant says nothing.
    by_head(attention.v_proj.weight)[:, :, :half] += torch.stack(values)
    group = shape.heads // shape.kv_heads
    for head in range(shape.heads):
        offset, highest = OFFSETS[head % len(OFFSETS)]
        wanted = near & (turn <= highest)
        size = 5 * shape.head_dim**0.5 / wanted.sum() / common
        queries = by_head(attention.q_proj.weight)[head]
        queries[:pairs, 0] += size * wanted * (offset * turn).cos()
        queries[pairs:, 0] -= size * wanted * (offset * turn).sin()
        columns = slice(head * shape.head_dim, (head + 1) * shape.head_dim)
        attention.o_proj.weight[half:, columns] += 0.2 / shape.heads * values[head // group].T


def look_for_equals(attention, forward):
    """Queries are keys, by pairs that turn slowly: of the second half, to copy the first, or (not `forward`) of the first, to copy
    the second to the first."""
    shape = attention.shape
    half, group = shape.width // 2, shape.heads // shape.kv_heads
    first, second = slice(0, half), slice(half, 2 * half)
    compared, copied = (second, first) if forward else (first, second)
    for weight in [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight, attention.o_proj.weight]:
        weight.mul_(0.1)
    slow = (frequencies(shape) < FARTHEST_TURN).repeat(2)
    by_head = lambda weight: weight.view(-1, shape.head_dim, shape.width)
    for kv_head in range(shape.kv_heads):
        same = nn.init.orthogonal_(torch.empty(shape.head_dim, half)) * slow[:, None]
        values = nn.init.orthogonal_(torch.empty(shape.head_dim, half))
        if not forward:
            same[:, 0] = 0  # The constant says nothing.
        by_head(attention.k_proj.weight)[kv_head, :, compared] += same
        by_head(attention.v_proj.weight)[kv_head, :, copied] += values
        for head in range(kv_head * group, (kv_head + 1) * group):
            by_head(attention.q_proj.weight)[head, :, compared] += same
            columns = slice(head * shape.head_dim, (head + 1) * shape.head_dim)
            attention.o_proj.weight[first, columns] += 0.1 / shape.heads * values.T
