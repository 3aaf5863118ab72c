"""An engine around the classes of vLLM that the plug-in replaces, with blocks and requests.

`stubs/vllm` has the signatures of these classes, so that no vLLM is needed.
"""

import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = (
    importlib.import_module("torch")
    if "VATTENTION_REQUIRE_TRANSFORMERS" in os.environ
    else pytest.importorskip("torch")
)
sys.path.insert(0, str(Path(__file__).parent / "stubs"))
from vllm.config import VllmConfig  # noqa: E402
from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheLayout  # noqa: E402

QUERY_HEADS, KV_HEADS, DIM = 4, 2, 32
SCALE = 0.2


def find_backend():
    """Returns the class that is registered for CPUs."""
    module, name = AttentionBackendEnum.CPU_ATTN.get_path().rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


class Request:
    """Tokens of a request: rows of each layer, and the blocks of those that are in the pool."""

    def __init__(self, rows):
        self.keys, self.values = rows
        """Keys and values of all layers, `[layers, kv_heads, tokens, dim]`."""
        self.prompt = self.keys.shape[2]
        self.blocks = []
        self.computed = 0

    def extend(self, rows):
        self.keys = torch.cat([self.keys, rows[0]], dim=2)
        self.values = torch.cat([self.values, rows[1]], dim=2)


class ToyVllm:
    """Layers with a pool, and a scheduler that does what it is told."""

    def __init__(self, layers=2, blocks=64, block=16, dtype=torch.float32, **options):
        self.random, self.block, self.dtype = torch.Generator().manual_seed(0), block, dtype
        config = VllmConfig()
        config.scheduler_config.max_num_seqs = options.pop("max_num_seqs", 8)
        backend = find_backend()
        spec = FullAttentionSpec(
            block_size=block, num_kv_heads=KV_HEADS, head_size=DIM, dtype=dtype
        )
        names = [f"model.layers.{number}.self_attn.attn" for number in range(layers)]
        self.builder = backend.get_builder_cls()(spec, names, config, torch.device("cpu"))
        assert backend.supported_kv_cache_layouts() == (KVCacheLayout.LBHNC,)
        shape = (blocks, KV_HEADS, block, 2 * DIM)
        self.layers = []
        for name in names:
            impl = backend.get_impl_cls()(
                QUERY_HEADS, DIM, SCALE, KV_HEADS, None, None, "auto", **options
            )
            cache = torch.full(shape, float("nan"), dtype=dtype)
            layer = SimpleNamespace(layer_name=name, impl=impl, kv_cache=cache)
            self.layers.append(layer)
            self.warm_up(layer)
        self.options = options
        self.unused = list(range(blocks - 1, -1, -1))
        self.users = [0] * blocks
        self.requests = {}

    def warm_up(self, layer):
        """Calls a layer without a pool, as vLLM does before it measures memory."""
        nothing = torch.zeros(3, KV_HEADS, DIM, dtype=self.dtype)
        query = torch.zeros(3, QUERY_HEADS, DIM, dtype=self.dtype)
        output = torch.full_like(query, float("nan"))
        layer.impl.forward(layer, query, nothing, nothing, torch.tensor([]), None, output)
        assert not output.any()

    def normal(self, *shape):
        return torch.randn(shape, generator=self.random).to(self.dtype)

    def rows(self, tokens):
        shape = (len(self.layers), KV_HEADS, tokens, DIM)
        return self.normal(*shape), 1 + self.normal(*shape)

    def add(self, name, tokens):
        """Adds a request with a prompt."""
        self.requests[name] = Request(self.rows(tokens))

    def share(self, name, other, tokens, shared):
        """Adds a request whose first blocks are those of another one, as a prefix cache does."""
        assert shared % self.block == 0
        request, donor = Request(self.rows(tokens)), self.requests[other]
        request.keys[:, :, :shared] = donor.keys[:, :, :shared]
        request.values[:, :, :shared] = donor.values[:, :, :shared]
        request.blocks = donor.blocks[: shared // self.block]
        request.computed = shared
        for block in request.blocks:
            self.users[block] += 1
        self.requests[name] = request

    def preempt(self, name):
        """Frees the blocks of a request, which must compute all its tokens again."""
        request = self.requests[name]
        for block in reversed(request.blocks):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.unused.append(block)
        request.blocks, request.computed = [], 0

    def finish(self, name):
        self.preempt(name)
        del self.requests[name]

    def reserve(self, request, new):
        """Gives new tokens rows and blocks, and returns their slots."""
        first, last = request.computed, request.computed + new
        missing = last - request.keys.shape[2]
        if missing > 0:
            request.extend(self.rows(missing))
        while len(request.blocks) * self.block < last:
            block = self.unused.pop()
            self.users[block] += 1
            request.blocks.append(block)
        tokens = range(first, last)
        return [request.blocks[t // self.block] * self.block + t % self.block for t in tokens]

    def step(self, new):
        """Runs a step with a number of new tokens of each request.

        Returns queries and outputs of each request, `[layers, query_heads, new, dim]`.
        """
        requests, counts = [self.requests[name] for name in new], list(new.values())
        prefilling = [request.computed < request.prompt for request in requests]
        slots = [slot for name in new for slot in self.reserve(self.requests[name], new[name])]
        metadata = self.build(requests, counts, slots, prefilling)
        queries, outputs = [], []
        for number in range(len(self.layers)):
            keys = self.join([r.keys[number] for r in requests], requests, counts)
            values = self.join([r.values[number] for r in requests], requests, counts)
            query = self.normal(len(slots), QUERY_HEADS, DIM)
            queries.append(query)
            outputs.append(self.run_layer(number, query, keys, values, metadata, slots))
        for request, count in zip(requests, counts, strict=True):
            request.computed += count
        queries = torch.stack(queries).transpose(1, 2).split(counts, dim=2)
        outputs = torch.stack(outputs).transpose(1, 2).split(counts, dim=2)
        return dict(zip(new, zip(queries, outputs, strict=True), strict=True))

    def run_layer(self, number, query, keys, values, metadata, slots):
        """Runs a layer, and returns its output `[new, query_heads, dim]`."""
        layer = self.layers[number]
        output = torch.full_like(query, float("nan"))
        layer.impl.do_kv_cache_update(layer, keys, values, layer.kv_cache, torch.tensor(slots))
        layer.impl.forward(layer, query, keys, values, layer.kv_cache, metadata, output)
        return output

    def join(self, rows, requests, counts):
        """Joins the new rows of requests to `[tokens, kv_heads, dim]`, with padding at the end."""
        new = []
        for part, request, count in zip(rows, requests, counts, strict=True):
            new.append(part[:, request.computed : request.computed + count].transpose(0, 1))
        return torch.cat([*new, torch.full((2, KV_HEADS, DIM), float("nan"), dtype=self.dtype)])

    def build(self, requests, counts, slots, prefilling):
        """Builds the metadata of a step, with unused entries of block tables as vLLM has them."""
        lengths = [r.computed + count for r, count in zip(requests, counts, strict=True)]
        tables = torch.zeros(len(requests), max(len(r.blocks) for r in requests) + 3).int()
        for row, request in zip(tables, requests, strict=True):
            row[: len(request.blocks)] = torch.tensor(request.blocks)
        starts = torch.tensor([0, *np.cumsum(counts).tolist()]).int()
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor(lengths).int(),
            num_reqs=len(requests),
            num_actual_tokens=len(slots),
            max_query_len=max(counts),
            max_seq_len=max(lengths),
            block_table_tensor=tables,
            slot_mapping=torch.tensor(slots),
            is_prefilling=torch.tensor(prefilling),
        )
        return self.builder.build(0, common)

    def exact(self, name, query):
        """Computes exact attention of the newest tokens of a request, as `step` returns it."""
        request, new = self.requests[name], query.shape[2]
        tokens, group = request.computed, QUERY_HEADS // KV_HEADS
        keys = request.keys[:, :, :tokens].double().repeat_interleave(group, dim=1)
        values = request.values[:, :, :tokens].double().repeat_interleave(group, dim=1)
        logits = SCALE * query.double() @ keys.transpose(-1, -2)
        if cap := self.options.get("logits_soft_cap"):
            logits = cap * torch.tanh(logits / cap)
        hidden = torch.ones(new, tokens, dtype=torch.bool).triu(tokens - new + 1)
        logits = logits.masked_fill(hidden, float("-inf"))
        if (sinks := self.options.get("sinks")) is not None:
            shape = (*logits.shape[:-1], 1)
            column = sinks.double()[None, :, None, None].expand(shape)
            logits = torch.cat([logits, column], dim=-1)
        return logits.softmax(-1)[..., :tokens] @ values
