"""A store from an array: read it as a tensor, change rows, keep it in a file. Needs torch alone.

python docs/examples/first_store.py
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

import ibp_gnn

features = np.random.default_rng(0).standard_normal(
    (20_000, 64), dtype=np.float32
)  # yours: np.load(..., mmap_mode="r")
store = ibp_gnn.CompressedFeatureStore.build(features)
print(f"{store.raw_nbytes / 1e6:.1f} MB of features take {store.nbytes / 1e6:.1f} MB ({store.savings:.1%} saved)")

# Rows by id, in any order and as often as you like: the same bits as in the array.
ids = torch.randint(0, len(store), (1024,))
rows = store.gather(ids)  # on a GPU: store.gather(ids, "cuda")
assert rows.numpy().tobytes() == features[ids.numpy()].tobytes()

# An index works as a tensor's. Only its rows are decoded.
mask = torch.arange(len(store)) % 1000 == 0
assert store[3].shape == (64,) and store[1:5].shape == (4, 64) and store[mask].shape == (20, 64)

# New rows over old ones.
store.update(torch.tensor([0, 1]), torch.zeros(2, 64))
assert not store[:2].any()

# A file keeps the compressed rows. It holds no code, and every bit is under a checksum.
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "features.ibp"
    store.save(path)
    with ibp_gnn.CompressedFeatureStore.load(path) as loaded:  # mapped: opening takes no memory
        assert torch.equal(loaded[ids], store[ids])
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, the same rows")
