"""What other libraries take on a GPU for what `gather` measures of ours (tools/gpu_peers.py)."""
