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
        q, k, v = (
            turned(split(self.q_proj(x)), turn),
            turned(split(self.k_proj(x)), turn),
            split(self.v_proj(x)),
        )
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
    pairs = (
        torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=positions.device)
        / shape.head_dim
    )
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
    after the same words. Its last head takes away the words just said. The third looks for the same word, and adds the second
    half there: what came before it. Further layers do as the second and the third in turn.
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
            (look_for_what_followed, look_for_what_led)[i % 2](layer.self_attn)


CONSTANT = 0.5  # What all words have in common at the start, in the state's first number: a word has a length of about 1.
OFFSETS = [
    (1, 1.0),
    (2, 1.0),
    (3, 0.6),
    (5, 0.3),
]  # Of the first layer's heads: where they look, and their highest frequency.
LAST_WORDS = (1, 0.6)  # The same of the head that takes away the words just said.
FARTHEST_TURN = (
    1e-3  # Radians a token: pairs that turn faster than that cannot compare words far apart.
)


def words_in_first_half(words):
    half = words.shape[1] // 2
    words[:, :half].mul_(2**0.5)
    words[:, half:].mul_(0.1)
    words[:, 0] = CONSTANT


def frequencies(shape):
    return shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)


def by_head(shape, weight):
    return weight.view(-1, shape.head_dim, shape.width)


def columns(shape, head):
    """Of the output's weight."""
    return slice(head * shape.head_dim, (head + 1) * shape.head_dim)


def halves(shape):
    return slice(0, shape.width // 2), slice(shape.width // 2, shape.width // 2 * 2)


def common(shape):
    """What the norm makes of the constant."""
    return CONSTANT / 1.1 * shape.width**0.5


def quieten(attention):
    for weight in [
        attention.q_proj.weight,
        attention.k_proj.weight,
        attention.v_proj.weight,
        attention.o_proj.weight,
    ]:
        weight.mul_(0.1)


def projections(shape, count):
    """Random ones of a half of the state to a head, which leave out the constant: it says nothing."""
    made = [
        nn.init.orthogonal_(torch.empty(shape.head_dim, shape.width // 2)) for _ in range(count)
    ]
    for projection in made:
        projection[:, 0] = 0
    return made


def near(shape):
    """The pairs that turn fast enough to tell neighbours apart."""
    return frequencies(shape) > 0.005


def keys_tell_places(attention):
    """The first of every pair that tells neighbours apart is the constant: turned, it is the place."""
    shape = attention.shape
    by_head(shape, attention.k_proj.weight)[:, : shape.head_dim // 2, 0] += near(shape) / common(
        shape
    )


def look_at(attention, head, offset, highest):
    """The head looks `offset` words back, the more sharply the higher `highest`, whatever is there."""
    shape, turn = attention.shape, frequencies(attention.shape)
    wanted = near(shape) & (turn <= highest)
    size = 5 * shape.head_dim**0.5 / wanted.sum() / common(shape)
    queries, pairs = by_head(shape, attention.q_proj.weight)[head], shape.head_dim // 2
    queries[:pairs, 0] += size * wanted * (offset * turn).cos()
    queries[pairs:, 0] -= size * wanted * (offset * turn).sin()


def look_back(attention):
    """Head h looks OFFSETS[h] words back, and copies the first half of the state to the second."""
    shape, (first, second) = attention.shape, halves(attention.shape)
    quieten(attention)
    keys_tell_places(attention)
    values = projections(shape, shape.kv_heads)
    by_head(shape, attention.v_proj.weight)[:, :, first] += torch.stack(values)
    for head in range(shape.heads):
        look_at(attention, head, *OFFSETS[head % len(OFFSETS)])
        written = values[head // (shape.heads // shape.kv_heads)].T
        attention.o_proj.weight[second, columns(shape, head)] += 0.2 / shape.heads * written


def look_for_what_followed(attention):
    """Queries are keys, of the second half, by pairs that turn slowly. What is found is copied in the first."""
    shape, (first, second) = attention.shape, halves(attention.shape)
    quieten(attention)
    keys_tell_places(attention)
    slow = (frequencies(shape) < FARTHEST_TURN).repeat(2)[:, None]
    keys, values = projections(shape, shape.kv_heads), projections(shape, shape.kv_heads)
    for head in range(shape.heads):
        kv_head = head // (shape.heads // shape.kv_heads)
        if head == shape.heads - 1 and head > 0:
            look_at(attention, head, *LAST_WORDS)
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


def look_for_what_led(attention):
    """Keys are of the first half, queries of either in turn. The second half of what is found is copied in the first."""
    shape, (first, second) = attention.shape, halves(attention.shape)
    quieten(attention)
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
