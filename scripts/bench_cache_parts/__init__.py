"""The parts of scripts/bench_cache_hit.py: config, traces, bytes of rows, policies, and how results are shown."""
