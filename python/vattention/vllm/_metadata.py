"""Metadata of a step: which sequences read their prompt, and which decode."""

from dataclasses import dataclass

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import (
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import AttentionSpec

from vattention.vllm._pipeline import refuse
from vattention.vllm._sequences import SequenceNumbers


@dataclass
class PromptChunk:
    """New tokens of a prompt."""

    first: int
    """Place of the first token in the batch."""
    new: int
    length: int
    """Number of tokens of the sequence, the new ones included."""
    blocks: torch.Tensor
    """Blocks of the tokens."""


@dataclass
class DecodeBatch:
    """Sequences with one new token each."""

    places: torch.Tensor
    """Places of the new tokens in the batch."""
    sequences: list[int]
    """Numbers of the sequences."""
    block_tables: torch.Tensor
    lengths: list[int]
    """Numbers of tokens of the sequences, the new ones included."""
    kept: set[int]
    """Numbers of all sequences that may continue; indexes of other ones are freed."""


@dataclass
class Metadata(AttentionMetadata):
    """Metadata of a step, for all layers of a group."""

    block_size: int
    prompts: list[PromptChunk]
    decodes: DecodeBatch | None


class MetadataBuilder(AttentionMetadataBuilder[Metadata]):
    """Builder of the metadata, which finds the numbers of the sequences."""

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        refuse_config(vllm_config)
        self.block_size = kv_cache_spec.block_size
        most = vllm_config.scheduler_config.max_num_seqs
        self.numbers = SequenceNumbers(self.block_size, most)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Metadata:
        batch = common_attn_metadata
        if batch.causal is not True:
            raise refuse("attention is not causal", "a decoder")
        slots = batch.slot_mapping[: batch.num_actual_tokens]
        self.numbers.write(slots.numpy().astype(np.int64))
        starts, lengths = batch.query_start_loc_cpu.tolist(), batch.seq_lens.tolist()
        reads_prompt = self.find_prompts(batch)
        prompts, decodes = [], []
        for row in range(batch.num_reqs):
            first, new, length = starts[row], starts[row + 1] - starts[row], lengths[row]
            if new > 1 or (new == 1 and reads_prompt[row]):
                blocks = batch.block_table_tensor[row, : self.count_blocks(length)]
                prompts.append(PromptChunk(first, new, length, blocks.long()))
            elif new == 1:
                decodes.append(row)
        return Metadata(self.block_size, prompts, self.make_decodes(batch, decodes))

    def find_prompts(self, batch: CommonAttentionMetadata) -> list[bool]:
        """Finds the sequences whose new tokens belong to the prompt.

        One new token may be the last part of a prompt, if vLLM says so.
        """
        if batch.is_prefilling is None:
            return [False] * batch.num_reqs
        found: list[bool] = batch.is_prefilling.tolist()
        return found

    def make_decodes(self, batch: CommonAttentionMetadata, rows: list[int]) -> DecodeBatch | None:
        """Collects the rows of a batch that decode."""
        if not rows:
            return None
        index = torch.tensor(rows)
        lengths: list[int] = batch.seq_lens[index].tolist()
        tables = batch.block_table_tensor[index, : self.count_blocks(max(lengths))]
        sequences = self.numbers.find(list(tables.numpy().astype(np.int64)), lengths)
        places = batch.query_start_loc_cpu[index].long()
        return DecodeBatch(places, sequences, tables, lengths, self.numbers.numbers)

    def count_blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)


def refuse_config(config: VllmConfig) -> None:
    """Raises ValueError for options of vLLM that the plug-in does not support."""
    parallel = config.parallel_config
    if parallel.tensor_parallel_size > 1:
        found = f"tensor_parallel_size is {parallel.tensor_parallel_size}"
        raise refuse(found, "1, because pipelines know the KV heads of a layer by their numbers")
    if parallel.decode_context_parallel_size > 1:
        found = f"decode_context_parallel_size is {parallel.decode_context_parallel_size}"
        raise refuse(found, "1, because a sequence is not divided")
    if config.speculative_config is not None:
        expected = "none, because drafts would be checked by dense attention"
        raise refuse("there is a speculative_config", expected)
    if config.kv_transfer_config is not None:
        expected = "none, because rows that others write are not noticed"
        raise refuse("there is a kv_transfer_config", expected)
