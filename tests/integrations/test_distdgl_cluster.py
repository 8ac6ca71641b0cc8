"""DistDGL with two servers and two clients: training on WordNet with compressed features, beside the raw ones."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("dgl")

import rank_processes

import ibp_gnn
from ibp_gnn.datasets import load_dataset
from ibp_gnn.integrations.dgl_compat import import_dgl

dgl = import_dgl()
PROGRAM = str(Path(__file__).parent / "distdgl_machine.py")
NODES = {"glove": 117_659, "bow": 40_000}  # of WordNet: bags of words of all take half a GB, several times
# A server names its shared memory after the graph, so each machine has to have a /dev/shm of its own.
MACHINE = """
mount -t tmpfs tmpfs /dev/shm || exit 1
{python} {program} server {number} {cluster} &
{python} {program} client {number} {cluster} && wait
"""


def own_shared_memory() -> list[str]:
    """A command in front of one that mounts. Skips where that may not be done."""
    for command in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        if (
            shutil.which("unshare")
            and not subprocess.run(
                [*command, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True
            ).returncode
        ):
            return command
    pytest.skip("processes may not have a /dev/shm of their own here")


@pytest.mark.parametrize(("features", "most"), [("glove", 0.90), ("bow", 0.1)])
def test_training_is_exact_and_pulls_less(tmp_path: Path, features: str, most: float) -> None:
    command = own_shared_memory()
    config = partitioned(tmp_path, features)
    ports = [_free_port() for _ in range(3)]
    (tmp_path / "ip_config.txt").write_text(f"127.0.0.2 {ports[0]}\n127.0.0.3 {ports[1]}\n")
    cluster = {"ip_config": str(tmp_path / "ip_config.txt"), "config": str(config), "port": ports[2]}
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    environment = rank_processes.environment_of_package() | {
        "DGL_DIST_MODE": "distributed",
        "DGL_IP_CONFIG": cluster["ip_config"],
        "DGL_CONF_PATH": cluster["config"],
        "DGL_NUM_SERVER": "1",
        "DGL_NUM_CLIENT": "2",
        "DGL_GRAPH_FORMAT": "csc",
    }
    machines = []
    for number in range(2):
        script = MACHINE.format(
            python=sys.executable, program=PROGRAM, number=number, cluster=tmp_path / "cluster.json"
        )
        machines.append(
            subprocess.Popen(
                ["timeout", "200", *command, "sh", "-c", script],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    results = []
    for machine in machines:
        output, _ = machine.communicate()
        assert machine.returncode == 0, output[-4000:]
        results.append(json.loads(next(line for line in output.splitlines() if line.startswith("RESULT"))[6:]))
    for result in results:
        compressed, raw = result["losses"]
        assert len(raw) == 8 and compressed == raw
        stats = result["stats"]
        assert 0 < stats["pulled_bytes"] <= most * stats["raw_bytes"]
        assert 0 < stats["network_bytes"] < stats["pulled_bytes"]
        assert result["hits"] > 0
    assert results[0]["losses"] != results[1]["losses"], "each has seeds of its own"


def partitioned(folder: Path, features: str) -> Path:
    """Two partitions of a part of WordNet, with its features compressed as "feat" and as they are as "raw"."""
    data = load_dataset("wordnet", features)
    graph = data.to_dgl()
    graph.ndata["feat"] = graph.ndata["raw"] = data.features
    graph.ndata["label"] = data.labels
    graph.ndata["train"] = torch.zeros(data.num_nodes, dtype=torch.bool).index_fill(0, data.train_ids, True)
    graph = dgl.node_subgraph(graph, range(NODES[features]), store_ids=False)
    dgl.distributed.partition_graph(graph, "wordnet", 2, str(folder), part_method="metis")
    return ibp_gnn.distdgl.compress_partitions(folder / "wordnet.json", ["feat"], progress=False)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
