"""The parts of scripts/bench_epoch.py: config, data, ways to fetch, training, and how results are shown."""
