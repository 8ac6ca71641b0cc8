"""Seeds and deterministic algorithms: what makes two runs comparable bit for bit."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterator

import numpy as np
import torch

from ..integrations.dgl_compat import graphbolt_is_native, import_dgl


def seed_everything(seed: int, *stream: int) -> None:
    """Seed every generator that a training loop draws from.

    seed, stream: non-negative; each `stream` of one seed is independent of the others.
    torch: weights, dropout, PyG's loaders and the workers' base seed; DGL and GraphBolt, if they have been
    imported: their samplers; NumPy, random: some of DGL's Python code.
    """
    mixed = int(np.random.SeedSequence([seed, *stream]).generate_state(1)[0]) % 2**31
    random.seed(mixed)
    np.random.seed(mixed)
    torch.manual_seed(mixed)
    if "dgl" not in sys.modules:
        return
    if graphbolt_is_native():
        torch.ops.graphbolt.set_seed(mixed)
    # DGL seeds each thread with seed + its number, and numbers threads in the order in which they first ask:
    # a race, unless this thread asks alone.
    with one_dgl_thread():
        import_dgl().seed(mixed)


@contextlib.contextmanager
def one_dgl_thread() -> Iterator[None]:
    """DGL works on this thread alone, within."""
    utils = import_dgl().utils
    # torch and DGL share OpenMP's thread count: the training step gets it back.
    threads = utils.get_num_threads()
    utils.set_num_threads(1)
    try:
        yield
    finally:
        utils.set_num_threads(threads)


def seed_worker(worker_id: int) -> None:
    """`worker_init_fn`: torch has given each worker its own seed by now; hand it to the other generators."""
    del worker_id
    seed_everything(torch.initial_seed() % 2**63)


def use_deterministic_algorithms() -> None:
    """Make torch refuse kernels whose results vary from run to run. Call before the first use of CUDA."""
    # cuBLAS is deterministic only with a fixed workspace, and reads this when its handle is made.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
