"""Which rows are read most: scores of every row, for `CompressedGPUCache(hotness=...)`. Needs torch alone."""

from .gpu.hotness import degree, presample, reverse_pagerank

__all__ = ["degree", "presample", "reverse_pagerank"]
