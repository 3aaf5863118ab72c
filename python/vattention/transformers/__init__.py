"""Attention by a pipeline in `model.generate()` of `transformers`.

    import vattention.transformers
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="vattention")
    cache = vattention.transformers.VAttentionCache(model, "priority")
    model.generate(**inputs, cache=cache)  # past_key_values=cache before transformers 5.24
    cache.summary()

Importing this module registers the attention function "vattention". With a `VAttentionCache`, torch
reads the prompt densely, and each later token attends by the pipeline. With any other cache,
"vattention" is torch's own attention. docs/python.md lists the supported models and kinds of
generation.
"""

from vattention.transformers._cache import VAttentionCache
from vattention.transformers._capture import capture
from vattention.transformers._function import NAME, attention

__all__ = ["NAME", "VAttentionCache", "attention", "capture"]
