"""Registry of backends, in which a plug-in replaces the class of a name."""

from collections.abc import Callable
from enum import Enum


class AttentionBackendEnum(Enum):
    CPU_ATTN = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"

    def get_path(self) -> str:
        return _OVERRIDES.get(self, self.value)

    def clear_override(self) -> None:
        _OVERRIDES.pop(self, None)


_OVERRIDES: dict[AttentionBackendEnum, str] = {}


def register_backend(
    backend: AttentionBackendEnum, class_path: str | None = None, is_mamba: bool = False
) -> Callable[[type], type]:
    assert class_path is not None
    _OVERRIDES[backend] = class_path
    return lambda replaced: replaced
