"""Modules of bench_peers.py."""
