"""Modules of tools/gpu_peers.py, which times other libraries on a GPU."""
