"""Backend that vLLM finds in its registry."""

from typing import ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.kv_cache_interface import KVCacheLayout

from vattention.vllm._impl import CACHE_TYPES, VAttentionImpl
from vattention.vllm._metadata import MetadataBuilder


class VAttentionBackend(AttentionBackend):
    """Attention by a pipeline, in place of vLLM's attention on CPUs."""

    forward_includes_kv_cache_update = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(CACHE_TYPES)

    @staticmethod
    def get_name() -> str:
        """Returns the name of the backend that is replaced, because vLLM looks the name up."""
        return "CPU_ATTN"

    @staticmethod
    def get_impl_cls() -> type[VAttentionImpl]:
        return VAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[MetadataBuilder]:
        return MetadataBuilder

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Returns the layout in which the rows of a KV head in a block follow each other."""
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 32 == 0

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False
