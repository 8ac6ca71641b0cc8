"""The parts of scripts/bench_codec.py: what is measured (config, data), the measurements, and how they are shown."""
