"""Attention of one layer: rows in vLLM's pool, and the indexes of a pipeline."""

from typing import Any

import torch
from vllm.v1.attention.backend import AttentionImpl, AttentionType

from vattention._vattention import PagedAttention
from vattention.vllm._metadata import DecodeBatch, Metadata, PromptChunk
from vattention.vllm._pipeline import load_pipeline, refuse
from vattention.vllm._prefill import attend_to_rows, gather

CACHE_TYPES = ("auto", "float16", "bfloat16", "float32")
"""Names of vLLM for caches that are not quantized."""


class VAttentionImpl(AttentionImpl[Metadata]):
    """Attention of one layer: dense for prompts, by a pipeline for later tokens.

    A pool is `[blocks, kv_heads, block, 2 * head_size]`. Each row is a key and a value, side by
    side, unlike the rows of vLLM's own kernels.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        if attn_type != AttentionType.DECODER:
            raise refuse(f"attention of the type {AttentionType(attn_type).value}", "a decoder")
        if sliding_window is not None:
            raise refuse(f"a layer has a sliding window of {sliding_window}", "full attention")
        if alibi_slopes is not None:
            raise refuse("a layer has ALiBi slopes", "logits without biases")
        if kv_cache_dtype not in CACHE_TYPES:
            raise refuse(f"the KV cache is {kv_cache_dtype}", " or ".join(CACHE_TYPES))
        if kv_sharing_target_layer_name is not None:
            found = f"a layer uses the KV cache of {kv_sharing_target_layer_name}"
            raise refuse(found, "a cache of its own")
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.soft_cap = logits_soft_cap or None
        self.sinks = sinks
        self.paged: PagedAttention | None = None

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Metadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attends from new tokens to the rows of the pool, in which their own rows already are.

        `query` and `output` are `[tokens, query_heads, head_size]`.
        """
        if output_scale is not None or output_block_scale is not None:
            raise refuse("the output of a layer is quantized", "an output of the model's type")
        paged = self.find_paged(layer)
        if attn_metadata is None:  # vLLM warms up, and has no pool yet.
            return output.zero_()
        if kv_cache.shape[2] != attn_metadata.block_size:
            found = f"blocks of the KV cache have {kv_cache.shape[2]} rows"
            raise refuse(found, f"{attn_metadata.block_size}, as in the block tables")
        for prompt in attn_metadata.prompts:
            place = slice(prompt.first, prompt.first + prompt.new)
            output[place] = self.read_prompt(prompt, query[place], kv_cache)
        decodes = attn_metadata.decodes
        if decodes is not None:
            decoded = self.decode(paged, decodes, query[decodes.places], kv_cache)
            output[decodes.places] = decoded.to(output.dtype)
        return output

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Writes keys and values `[tokens, kv_heads, head_size]` to the slots of the pool.

        Tokens at the end may have no slot.
        """
        new = len(slot_mapping)
        keys, values = key[:new].transpose(0, 1), value[:new].transpose(0, 1)
        self.find_paged(layer).write(keys, values, kv_cache, slot_mapping)

    def read_prompt(
        self, prompt: PromptChunk, query: torch.Tensor, kv_cache: torch.Tensor
    ) -> torch.Tensor:
        """Attends densely from new tokens of a prompt, `[new, query_heads, head_size]`."""
        rows = gather(kv_cache, prompt.blocks, prompt.length).to(query.dtype)
        keys, values = rows[..., : self.head_size], rows[..., self.head_size :]
        return attend_to_rows(query, keys, values, self.scale, self.soft_cap, self.sinks)

    def decode(
        self,
        paged: PagedAttention,
        batch: DecodeBatch,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
    ) -> torch.Tensor:
        """Attends from one token of each sequence by the pipeline, as `query`."""
        for sequence in paged.lengths.keys() - batch.kept:
            paged.free(sequence)
        tokens = (kv_cache, batch.block_tables, batch.lengths)
        paged.append(batch.sequences, *tokens)
        attended = paged.attend(batch.sequences, query.transpose(0, 1), *tokens)
        return torch.from_numpy(attended.out).transpose(0, 1)

    def find_paged(self, layer: Any) -> PagedAttention:
        """Returns the indexes of the layer, which are made in the first call of vLLM's warm-up."""
        if self.paged is None:
            self.paged = self.make_paged(find_number(layer.layer_name))
        return self.paged

    def make_paged(self, number: int) -> PagedAttention:
        """Makes the empty indexes of a layer."""
        pipeline = load_pipeline()
        paged = PagedAttention(
            pipeline,
            self.num_heads,
            self.num_kv_heads,
            self.head_size,
            layer=number,
            scale=self.scale,
            threads=torch.get_num_threads(),
            soft_cap=self.soft_cap,
            sink_logits=None if self.sinks is None else self.sinks.detach().float().tolist(),
        )
        if paged.needs_observe or paged.needs_classes:
            found = f"the pipeline {pipeline.name!r} learns from prompts"
            raise refuse(found, "one that needs only keys, and queries of later tokens")
        return paged


def find_number(layer_name: str) -> int:
    """Returns the number of a layer, 3 of "model.layers.3.self_attn.attn"."""
    numbers = [int(part) for part in layer_name.split(".") if part.isdigit()]
    if len(numbers) != 1:
        raise refuse(f"the name of a layer is {layer_name!r}", "a name with one number")
    return numbers[0]
