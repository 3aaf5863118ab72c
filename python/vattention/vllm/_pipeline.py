"""Choice of the pipeline, and registration with vLLM."""

import logging
import os

from vattention._vattention import Pipeline

VARIABLE = "VATTENTION_PIPELINE"
"""Environment variable with the name or the path of a pipeline."""

BACKEND = "vattention.vllm._backend.VAttentionBackend"

# A child of vLLM's logger, whose messages are shown.
_LOGGER = logging.getLogger("vllm.vattention")


def register() -> None:
    """Replaces vLLM's attention on CPUs, if the environment names a pipeline.

    The package may be installed for other reasons, so without the variable nothing changes. Raises
    PipelineError or OSError for a pipeline that cannot be loaded.
    """
    if not os.environ.get(VARIABLE):
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    pipeline = load_pipeline()
    register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
    _LOGGER.info("attention by the pipeline %r of vattention", pipeline.name)


def load_pipeline() -> Pipeline:
    """Loads the pipeline that the environment names."""
    return Pipeline.load(os.environ[VARIABLE])


def refuse(fault: str, expected: str) -> ValueError:
    """Error for a model or an option of vLLM that the plug-in does not support."""
    return ValueError(
        f"vattention: {fault}: expected {expected}; vLLM's own attention remains if {VARIABLE} is "
        "not set"
    )
