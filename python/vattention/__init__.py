"""Verified sparse attention: decoding that reads a few percent of a KV cache and keeps a promise.

| task | begin with |
|---|---|
| generate text with a model of `transformers` | `vattention.transformers.VAttentionCache` |
| attend to your own keys and values | `Pipeline`, `Attention` |
| attend over the pool of an inference engine | `PagedAttention` |
| record the attention inputs of a model | `vattention.transformers.capture`, `write_trace` |
| measure the error of a pipeline on a trace | `Trace`, `compare`, `verify`, `study` |
| write a selector in Python | `selector`, `vattention.testing.laws` |

Functions take arrays that support DLPack or the buffer protocol, such as numpy arrays, torch
tensors and memoryviews, in float32, float16 or bfloat16, in CPU memory. They return numpy arrays.
"""

from vattention._saving import register as _register_pickling
from vattention._selectors import selector
from vattention._tools import compare, study, verify
from vattention._vattention import (
    Attention,
    Output,
    PagedAttention,
    Pipeline,
    PipelineError,
    Trace,
    append_batch,
    attend_batch,
    write_trace,
)

_register_pickling()

__all__ = [
    "Attention",
    "Output",
    "PagedAttention",
    "Pipeline",
    "PipelineError",
    "Trace",
    "append_batch",
    "attend_batch",
    "compare",
    "selector",
    "study",
    "verify",
    "write_trace",
]
