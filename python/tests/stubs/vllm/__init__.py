"""Interfaces of vLLM that `vattention.vllm` uses: names and signatures of vLLM 0.32, no engine.

Tests run the plug-in against these classes, and types are checked against them.
"""
