"""GraphSAGE on mini-batches with DGL, its features compressed. The loop is DGL's own.

python docs/examples/train_dgl.py        # needs pip install '.[dgl]'
"""

import ibp_gnn  # before dgl: DGL's wheels then import on torch versions they were not built for

import dgl  # isort: skip
import torch
from torch.nn import functional

torch.manual_seed(0)

# Yours: a graph, its features, its labels. Here neighbours have the same label, and features that hint at it.
labels = torch.randint(0, 4, (4000,))
in_order = labels.argsort()
src = in_order[(torch.arange(4000).repeat(8) + torch.randint(1, 50, (32_000,))) % 4000]
graph = dgl.graph((src, in_order.repeat(8)), num_nodes=4000)
features = torch.randn(4000, 32) + functional.one_hot(labels, 32)

store = ibp_gnn.CompressedFeatureStore.build(features)
ibp_gnn.attach(graph, "feat", store)  # in the place of graph.ndata["feat"] = features
graph.ndata["label"] = labels


class GraphSAGE(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = dgl.nn.SAGEConv(32, 32, "mean")
        self.second = dgl.nn.SAGEConv(32, 4, "mean")

    def forward(self, blocks: list, x: torch.Tensor) -> torch.Tensor:
        return self.second(blocks[1], self.first(blocks[0], x).relu())


model = GraphSAGE()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
sampler = dgl.dataloading.NeighborSampler([8, 8], prefetch_node_feats=["feat"], prefetch_labels=["label"])
train_ids = torch.arange(0, 4000, 2)
loader = dgl.dataloading.DataLoader(graph, train_ids, sampler, batch_size=250, shuffle=True)
for epoch in range(3):
    correct = 0
    for input_nodes, _output_nodes, blocks in loader:
        x = blocks[0].srcdata["feat"]  # decoded for this batch: the same bits as features[input_nodes]
        assert torch.equal(x, features[input_nodes])
        out = model(blocks, x)
        wanted = blocks[-1].dstdata["label"]
        loss = functional.cross_entropy(out, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += int((out.argmax(1) == wanted).sum())
    print(f"epoch {epoch + 1}: accuracy {correct / len(train_ids):.2f}")
