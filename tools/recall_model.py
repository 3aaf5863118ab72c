"""Small Llama decoder in PyTorch, whose tensors have the names of `transformers`.

Training needs positions with gaps, and logits only at the places of answers, which is why this is
not the model of `transformers`. `tools/check_recall.py --compare` compares the logits of both.
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

    def forward(self, x, rotation):
        batch, length, _ = x.shape
        split = lambda y: y.view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
        q = rotate(split(self.q_proj(x)), rotation)
        k = rotate(split(self.k_proj(x)), rotation)
        v = split(self.v_proj(x))
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

    def forward(self, x, rotation):
        x = x + self.self_attn(self.input_layernorm(x), rotation)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.epsilon)

    def forward(self, words, positions):
        """Returns the last hidden state of every word, `[batch, length, width]`."""
        rotation = rotations(self.shape, positions)
        x = self.embed_tokens(words)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.norm(x)


class Recall(nn.Module):
    """Decoder with its output layer, which shares the weights of the embedding."""

    def __init__(self, shape):
        super().__init__()
        self.model = Decoder(shape)

    @property
    def shape(self):
        return self.model.shape

    def forward(self, words, positions, asked):
        """Returns the logits at the places `asked`, indices of the flattened `[batch, length]`."""
        states = self.model(words, positions).flatten(0, 1)
        return states[asked] @ self.model.embed_tokens.weight.T


def rotations(shape, positions):
    """Returns cosines and sines of RoPE for positions `[batch, length]`.

    Both have the shape `[batch, 1, length, head_dim]`.
    """
    pairs = (
        torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=positions.device)
        / shape.head_dim
    )
    angles = positions.float()[..., None] * shape.rope_theta**-pairs
    angles = torch.cat([angles, angles], -1)[:, None]
    return angles.cos(), angles.sin()


def rotate(x, rotation):
    cosine, sine = rotation
    a, b = x.chunk(2, -1)
    return x * cosine + torch.cat([-b, a], -1) * sine


@torch.no_grad()
def initialize(model, plain):
    """Initializes the weights at random, and for recall unless `plain`; training may change all.

    The initialization for recall follows the mimetic initialization of Trockman and Kolter,
    https://arxiv.org/abs/2305.09828. Embeddings use the first half of the hidden state.

    - Layer 0 attends to the few preceding words, and copies them to the second half.
    - Layer 1 attends to words with a similar second half at any distance, and adds these words to
      the first half: they are the words that follow the same preceding words. Its last head
      subtracts the most recent words.
    - Layer 2 attends to equal words, and adds their second half, the words before them, to the
      first half.

    Further layers repeat layers 1 and 2.
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
                tensor.mul_(0.1)  # The hidden state is then close to the word's embedding.
    if not plain:
        restrict_to_first_half(model.model.embed_tokens.weight)
        attend_back(model.model.layers[0].self_attn)
        for i, layer in enumerate(model.model.layers[1:]):
            (attend_to_successors, attend_to_predecessors)[i % 2](layer.self_attn)


# First element of all initial embeddings, whose norm is about 1.
CONSTANT = 0.5
# Offsets that the heads of layer 0 attend to, and the highest frequency that each head uses.
OFFSETS = [(1, 1.0), (2, 1.0), (3, 0.6), (5, 0.3)]
# Offset and highest frequency of the head that subtracts the most recent words.
LAST_WORDS = (1, 0.6)
# Highest frequency, in radians per token, with which distant words can still be compared.
FARTHEST_TURN = 1e-3


def restrict_to_first_half(words):
    half = words.shape[1] // 2
    words[:, :half].mul_(2**0.5)
    words[:, half:].mul_(0.1)
    words[:, 0] = CONSTANT


def frequencies(shape):
    return shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)


def by_head(shape, weight):
    return weight.view(-1, shape.head_dim, shape.width)


def columns(shape, head):
    """Returns the columns of a head in the weight of the output projection."""
    return slice(head * shape.head_dim, (head + 1) * shape.head_dim)


def halves(shape):
    return slice(0, shape.width // 2), slice(shape.width // 2, shape.width // 2 * 2)


def normalized_constant(shape):
    """Returns the constant after RMSNorm."""
    return CONSTANT / 1.1 * shape.width**0.5


def scale_down(attention):
    for weight in [
        attention.q_proj.weight,
        attention.k_proj.weight,
        attention.v_proj.weight,
        attention.o_proj.weight,
    ]:
        weight.mul_(0.1)


def projections(shape, count):
    """Returns random projections from a half of the state to a head, which ignore the constant."""
    matrices = [
        nn.init.orthogonal_(torch.empty(shape.head_dim, shape.width // 2)) for _ in range(count)
    ]
    for projection in matrices:
        projection[:, 0] = 0
    return matrices


def local_pairs(shape):
    """Returns a mask of the RoPE pairs that turn fast enough to distinguish neighbours."""
    return frequencies(shape) > 0.005


def add_positions_to_keys(attention):
    """Adds the constant to the first element of every local pair, which RoPE then rotates."""
    shape = attention.shape
    rows = by_head(shape, attention.k_proj.weight)
    rows[:, : shape.head_dim // 2, 0] += local_pairs(shape) / normalized_constant(shape)


def attend_to_offset(attention, head, offset, highest):
    """Makes a head attend `offset` words back; a larger frequency `highest` is sharper."""
    shape, turn = attention.shape, frequencies(attention.shape)
    used = local_pairs(shape) & (turn <= highest)
    size = 5 * shape.head_dim**0.5 / used.sum() / normalized_constant(shape)
    queries, pairs = by_head(shape, attention.q_proj.weight)[head], shape.head_dim // 2
    queries[:pairs, 0] += size * used * (offset * turn).cos()
    queries[pairs:, 0] -= size * used * (offset * turn).sin()


def attend_back(attention):
    """Makes head h attend by OFFSETS[h], and copy the first half of the state to the second."""
    shape, (first, second) = attention.shape, halves(attention.shape)
    scale_down(attention)
    add_positions_to_keys(attention)
    values = projections(shape, shape.kv_heads)
    by_head(shape, attention.v_proj.weight)[:, :, first] += torch.stack(values)
    for head in range(shape.heads):
        attend_to_offset(attention, head, *OFFSETS[head % len(OFFSETS)])
        output = values[head // (shape.heads // shape.kv_heads)].T
        attention.o_proj.weight[second, columns(shape, head)] += 0.2 / shape.heads * output


def attend_to_successors(attention):
    """Makes heads attend to words with a similar second half, and copy their first half.

    Queries equal keys in the pairs that turn slowly. The last head subtracts the most recent words.
    """
    shape, (first, second) = attention.shape, halves(attention.shape)
    scale_down(attention)
    add_positions_to_keys(attention)
    slow = (frequencies(shape) < FARTHEST_TURN).repeat(2)[:, None]
    keys, values = projections(shape, shape.kv_heads), projections(shape, shape.kv_heads)
    for head in range(shape.heads):
        kv_head = head // (shape.heads // shape.kv_heads)
        if head == shape.heads - 1 and head > 0:
            attend_to_offset(attention, head, *LAST_WORDS)
            attention.o_proj.weight[first, columns(shape, head)] -= (
                0.2 / shape.heads * values[kv_head].T
            )
            continue
        by_head(shape, attention.q_proj.weight)[head, :, second] += keys[kv_head] * slow
        attention.o_proj.weight[first, columns(shape, head)] += (
            0.1 / shape.heads * values[kv_head].T
        )
    for kv_head in range(shape.kv_heads):
        by_head(shape, attention.k_proj.weight)[kv_head, :, second] += keys[kv_head] * slow
        by_head(shape, attention.v_proj.weight)[kv_head, :, first] += values[kv_head]


def attend_to_predecessors(attention):
    """Makes heads attend to equal words, and copy their second half to the first.

    Keys project the first half. Queries project the first half in even heads, the second half in
    odd heads.
    """
    shape, (first, second) = attention.shape, halves(attention.shape)
    scale_down(attention)
    slow = 1.5 * (frequencies(shape) < FARTHEST_TURN).repeat(2)[:, None]
    keys, values = projections(shape, shape.kv_heads), projections(shape, shape.kv_heads)
    for head in range(shape.heads):
        kv_head = head // (shape.heads // shape.kv_heads)
        by_head(shape, attention.q_proj.weight)[head, :, (first, second)[head % 2]] += (
            keys[kv_head] * slow
        )
        attention.o_proj.weight[first, columns(shape, head)] += (
            0.25 / shape.heads * values[kv_head].T
        )
    for kv_head in range(shape.kv_heads):
        by_head(shape, attention.k_proj.weight)[kv_head, :, first] += keys[kv_head] * slow
        by_head(shape, attention.v_proj.weight)[kv_head, :, second] += values[kv_head]
