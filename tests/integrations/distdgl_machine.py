"""A machine of a DistDGL cluster, in a network of loopback addresses: one server and one client, in a /dev/shm of their
own. test_distdgl_cluster.py starts two.

Arguments: "server" or "client", the machine's number, and the file that says the rest. The client trains two models on
the same batches: one reads compressed features, the other one the same features, uncompressed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import ibp_gnn
from ibp_gnn.integrations.dgl_compat import import_dgl
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.training.sage import GraphSAGE

dgl = import_dgl()


def serve(number: int, cluster: dict[str, Any]) -> None:
    os.environ["DGL_ROLE"], os.environ["DGL_SERVER_ID"] = "server", str(number)
    dgl.distributed.initialize(cluster["ip_config"])  # does not return


def train(number: int, cluster: dict[str, Any]) -> None:
    # All loopback addresses are this machine's, whatever its number.
    dgl.distributed.rpc_client.get_local_machine_id = lambda namebook: number
    dgl.distributed.initialize(cluster["ip_config"])
    store = distributed.TCPStore("127.0.0.1", cluster["port"], 2, number == 0)
    distributed.init_process_group("gloo", store=store, rank=number, world_size=2)
    graph = ibp_gnn.distdgl.attach(dgl.distributed.DistGraph("wordnet"), cluster["config"])
    feature, raw = graph.ndata["feat"], graph.ndata["raw"]
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        model = GraphSAGE(feature.shape[1], 45, hidden=16, layers=2, dropout=0.0, input_norm=True, aggregation="dgl")
        models.append(DistributedDataParallel(model))
    optimizers = [torch.optim.Adam(model.parameters(), lr=3e-3) for model in models]
    ids = dgl.distributed.node_split(graph.ndata["train"], graph.get_partition_book(), force_even=True)
    sampler = dgl.dataloading.NeighborSampler([5, 5])
    loader = dgl.dataloading.DistNodeDataLoader(graph, ids, sampler, batch_size=256, shuffle=True, drop_last=True)
    losses: list[list[float]] = [[], []]
    for step, (input_nodes, output_nodes, blocks) in enumerate(loader):
        if step == 8:
            break
        labels = graph.ndata["label"][output_nodes]
        rows = feature[input_nodes], raw[input_nodes]
        assert_bitwise_equal(*rows)
        for model, optimizer, x, of_model in zip(models, optimizers, rows, losses, strict=True):
            loss = cross_entropy(model(blocks, x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            of_model.append(float(loss))
    stats = feature.stats()
    every = torch.arange(0, len(feature), 7)
    assert_bitwise_equal(feature[every], raw[every])
    cache = ibp_gnn.distdgl.DistCache(feature, 0.25, hotness=torch.arange(len(feature)), device="cpu")
    assert_bitwise_equal(cache[every], raw[every])
    print("RESULT", json.dumps({"losses": losses, "stats": vars(stats), "hits": cache.stats().hits, "seeds": len(ids)}))
    sys.stdout.flush()
    distributed.barrier()


def main() -> None:
    role, number, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with open(path) as file:
        cluster = json.load(file)
    {"server": serve, "client": train}[role](number, cluster)


main()
