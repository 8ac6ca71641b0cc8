"""What scripts/compat.sh runs in each environment: import, store, fetch and loader with the libraries that are there.
Prints one line of JSON: for each library "ok", or what went wrong.

python scripts/compat_checks.py none dgl pyg
"""

from __future__ import annotations

import json
import subprocess
import sys

STORE = """
import tempfile, torch, ibp_gnn
x = torch.randn(500, 20)
def same(a, b): return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))
store = ibp_gnn.CompressedFeatureStore.build(x, progress=False)
ids = torch.randint(500, (70,))
assert same(store.gather(ids), x[ids])
store.update(torch.tensor([3]), x[:1])
store.update(torch.tensor([3]), x[3:4])
with tempfile.TemporaryDirectory() as folder:
    store.save(folder + "/s.ibp")
    with ibp_gnn.CompressedFeatureStore.load(folder + "/s.ibp", progress=False) as loaded:
        assert same(loaded.gather(ids), x[ids])
if COMPILES and hasattr(torch.compiler, "is_compiling"):
    assert same(torch.compile(lambda i: store.gather(i), fullgraph=True, backend="eager")(ids), x[ids])
"""
DGL = """
import dgl
g = dgl.rand_graph(500, 4000)
ibp_gnn.attach(g, "feat", store)
assert same(ibp_gnn.fetch(g, "feat", ids), x[ids])
sampler = dgl.dataloading.NeighborSampler([4, 4], prefetch_node_feats=["feat"])
for workers in (0, 2):
    loader = dgl.dataloading.DataLoader(g, torch.arange(100), sampler, batch_size=32, num_workers=workers)
    for input_nodes, _, blocks in loader:
        assert same(blocks[0].srcdata["feat"], x[input_nodes])
"""
PYG = """
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
features = ibp_gnn.pyg.PyGFeatureStore({"x": x})
graph = Data(edge_index=torch.randint(500, (2, 4000)), num_nodes=500)
sampler = ibp_gnn.pyg.NeighborSampler(graph, [4, 4])
for batch in NodeLoader((features, graph), sampler, input_nodes=torch.arange(100), batch_size=32):
    assert same(batch.x, x[batch.n_id])
"""
PROGRAMS = {"none": "", "dgl": DGL, "pyg": PYG}


def check(library: str) -> str:
    # torch.compile once, and not where Python is newer than torch knows.
    compiles = library == "none" and sys.version_info < (3, 13)
    program = f"COMPILES = {compiles}\n" + STORE + PROGRAMS[library]
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=600)
    return (
        "ok" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:200]
    )


if __name__ == "__main__":
    print(json.dumps({library: check(library) for library in sys.argv[1:]}))
