"""The hottest rows in GPU memory, the others in CPU memory, one kernel for both; the next batch while this one trains.

python docs/examples/gpu_cache.py        # needs a GPU
"""

import torch

import ibp_gnn
from ibp_gnn import hotness

torch.manual_seed(0)
num_nodes = 50_000
features = torch.randn(num_nodes, 128)
src = (torch.rand(500_000) ** 3 * num_nodes).long()  # some nodes have far more edges than others
batches = [src[torch.randint(0, len(src), (20_000,))] for _ in range(10)]  # yours: the input nodes of a sampler

store = ibp_gnn.CompressedFeatureStore.build(features)
with ibp_gnn.CompressedGPUCache(store, "25%", hotness=hotness.degree(src, num_nodes)) as cache:
    for ids, x in ibp_gnn.Prefetcher(batches, cache, device="cuda"):
        assert torch.equal(x.cpu(), features[ids])
    stats = cache.stats()
    print(f"{cache.num_cached} of {len(cache)} rows in {cache.nbytes / 1e6:.1f} MB of GPU memory")
    print(
        f"misses: {stats.miss_rate:.1%}; {stats.pcie_bytes / 1e6:.1f} MB over PCIe, raw {stats.raw_bytes / 1e6:.1f} MB"
    )
