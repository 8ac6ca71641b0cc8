"""Frozen embedding tables, compressed: looked up and pooled, on the CPU and on GPUs."""
