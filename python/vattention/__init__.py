"""Verified sparse attention: decode over long KV caches that reads a few percent of the tokens and keeps a promise.

| you want to | begin with |
|---|---|
| generate with a model of `transformers` | `vattention.transformers.VAttentionCache` |
| attend to keys and values of your own | `Pipeline`, `Attention` |
| know how far a pipeline is off on your model | `vattention.transformers.capture`, `Trace`, `compare`, `verify`, `study` |
| try out a selector in Python | `selector`, `vattention.testing.laws` |

Arrays come in as anything that knows DLPack or the buffer protocol, in float32, float16 or bfloat16 and in the CPU's memory:
numpy arrays, torch tensors, memoryviews. They go out as numpy arrays.
"""

from vattention._saving import register as _register_pickling
from vattention._selectors import selector
from vattention._tools import compare, study, verify
from vattention._vattention import (
    Attention,
    Output,
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
