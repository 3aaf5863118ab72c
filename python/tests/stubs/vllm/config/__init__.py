"""Configuration of an engine: the fields that the plug-in reads."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ParallelConfig:
    tensor_parallel_size: int = 1
    decode_context_parallel_size: int = 1


@dataclass
class SchedulerConfig:
    max_num_seqs: int = 128


@dataclass
class VllmConfig:
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculative_config: Any = None
    kv_transfer_config: Any = None
