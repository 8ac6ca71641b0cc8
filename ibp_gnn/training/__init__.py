"""The reference training run: GraphSAGE on mini-batches, with compressed or raw features.

`loop.run(config)` is the whole path; `scripts/train_sage.py` is its command line.
"""
