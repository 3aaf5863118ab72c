"""Attention by a pipeline in vLLM's CPU backend.

    VATTENTION_PIPELINE=priority vllm serve MODEL

vLLM calls `register` in each of its processes, by the entry point `vllm.general_plugins`. If the
variable names a pipeline, prompts are read densely, and each later token attends by the pipeline.
Otherwise vLLM's own attention remains. docs/python.md lists what is supported.
"""

from vattention.vllm._pipeline import VARIABLE, register

__all__ = ["VARIABLE", "register"]
