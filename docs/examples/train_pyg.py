"""GraphSAGE on mini-batches with PyG, its features compressed. The loader is PyG's own.

python docs/examples/train_pyg.py        # needs pip install '.[pyg]'
"""

import torch
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import SAGEConv

import ibp_gnn

torch.manual_seed(0)

# Yours: a graph, its features, its labels. Here neighbours have the same label, and features that hint at it.
labels = torch.randint(0, 4, (4000,))
in_order = labels.argsort()
src = in_order[(torch.arange(4000).repeat(8) + torch.randint(1, 50, (32_000,))) % 4000]
edge_index = torch.stack([src, in_order.repeat(8)])
x = torch.randn(4000, 32) + functional.one_hot(labels, 32)

features = ibp_gnn.pyg.PyGFeatureStore({"x": x, "y": labels})  # in the place of Data(x=x, y=labels, ...)
graph = Data(edge_index=edge_index, num_nodes=4000)
sampler = ibp_gnn.pyg.NeighborSampler(graph, [8, 8])  # or NeighborLoader, with pyg-lib
train_ids = torch.arange(0, 4000, 2)
loader = NodeLoader((features, graph), sampler, input_nodes=train_ids, batch_size=250, shuffle=True)


class GraphSAGE(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(32, 32), SAGEConv(32, 4)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


model = GraphSAGE()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    correct = 0
    for batch in loader:
        assert torch.equal(batch.x, x[batch.n_id])  # decoded for this batch: the same bits
        out, wanted = model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]
        loss = functional.cross_entropy(out, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += int((out.argmax(1) == wanted).sum())
    print(f"epoch {epoch + 1}: accuracy {correct / len(train_ids):.2f}")
