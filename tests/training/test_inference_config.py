"""The settings of a layer-wise inference: defaults, and what is refused."""

from __future__ import annotations

import pytest

from ibp_gnn.config import ConfigError, load
from ibp_gnn.training.inference_config import InferenceConfig


def test_what_defaults_say() -> None:
    config = load(InferenceConfig, None, ["checkpoint=model.pt"])
    assert config == InferenceConfig("model.pt")
    assert (config.features, config.embeddings, config.embedding_store.codec) == ("compressed", "compressed", "auto")
    assert (config.output.predictions, config.output.logits, config.log.json) == (None, None, None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "missing setting 'checkpoint'"),
        (["checkpoint=x", "batch_size=0"], "batch_size: want a value >= 1, got 0"),
        (["checkpoint=x", "sample_nodes=0"], "sample_nodes: want a value >= 1, got 0"),
        (["checkpoint=x", "workers=-1"], "workers: want a value >= 0, got -1"),
        (["checkpoint=x", "seed=2147483648"], "seed: want a value .*< 2147483648, got 2147483648"),
        (["checkpoint=x", "embeddings=zipped"], "embeddings: want one of 'compressed', 'raw', got 'zipped'"),
        (["checkpoint=x", "output.logit=x"], "unknown setting 'output.logit'; did you mean 'output.logits'"),
    ],
)
def test_what_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(InferenceConfig, None, overrides)
