"""`model.generate()` of `transformers` by a pipeline: an attention function, and a cache that it finds.

    import vattention.transformers
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="vattention")
    cache = vattention.transformers.VAttentionCache(model, "priority")
    model.generate(**inputs, cache=cache)  # past_key_values=cache before transformers 5.24
    cache.summary()

Importing this module registers the attention function "vattention". A prompt is read densely, by torch; each token after it attends by the
pipeline. Without this cache, "vattention" is torch's own attention. docs/python.md says which models and kinds of generation work.
"""

from vattention.transformers._cache import VAttentionCache
from vattention.transformers._capture import capture
from vattention.transformers._function import NAME, attention

__all__ = ["NAME", "VAttentionCache", "attention", "capture"]
