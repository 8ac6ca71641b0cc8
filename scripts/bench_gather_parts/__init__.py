"""The parts of scripts/bench_gather.py: config, rows, ways to fetch them, timing, and how results are shown."""
