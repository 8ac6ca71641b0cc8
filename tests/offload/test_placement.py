from __future__ import annotations

import pytest

from ibp_gnn.offload.placement import Size, choose_places

LAYERS = [Size(100, 70, True) for _ in range(20)]
BUFFERS = 100 + 3 * 70  # decoded weight, landing buffers with prefetch=2


def test_all_raw_where_all_fit() -> None:
    assert choose_places(LAYERS, 2000, 2) == ["raw"] * 20


def test_all_stay_compressed_where_these_fit_and_some_become_raw() -> None:
    places = choose_places(LAYERS, 1999, 2)
    assert set(places) == {"raw", "compressed"}
    held = sum(100 if place == "raw" else 70 for place in places)
    assert held + 100 <= 1999 < held + 100 + 30


def test_weights_that_stay_are_spread_and_within_the_budget() -> None:
    places = choose_places(LAYERS, BUFFERS + 700, 2)
    assert places.count("compressed") == 10 and places.count("streamed") == 10
    assert all("streamed" in places[at : at + 3] and "compressed" in places[at : at + 3] for at in range(18))


def test_the_least_budget_streams_all() -> None:
    assert choose_places(LAYERS, BUFFERS, 2) == ["streamed"] * 20
    with pytest.raises(ValueError, match=f"gpu_budget: want at least {BUFFERS} bytes"):
        choose_places(LAYERS, BUFFERS - 1, 2)


def test_what_the_user_keeps_stays() -> None:
    sizes = [*LAYERS[:19], Size(100, 70, True, keep=True)]
    places = choose_places(sizes, BUFFERS + 70, 2)
    assert places == ["streamed"] * 19 + ["compressed"]
    with pytest.raises(ValueError, match=f"gpu_budget: want at least {BUFFERS + 70} bytes"):
        choose_places(sizes, BUFFERS + 69, 2)


def test_embeddings_are_the_last_to_stay() -> None:
    sizes = [Size(500, 350, False), *LAYERS]
    places = choose_places(sizes, BUFFERS + 19 * 70, 2)
    assert places[0] == "streamed" and places.count("compressed") == 19


def test_a_weight_that_is_much_larger_is_raw_so_that_buffers_are_short() -> None:
    sizes = [*LAYERS, Size(1000, 700, True)]
    least = 1000 + BUFFERS
    assert choose_places(sizes, least, 2) == ["streamed"] * 20 + ["raw"]
    with pytest.raises(ValueError, match=f"at least {least} bytes"):
        choose_places(sizes, least - 1, 2)
    assert choose_places(sizes, least + 700, 2).count("compressed") == 10


def test_without_a_buffer_to_decode_to() -> None:
    raw = [Size(100, 100, True) for _ in range(20)]
    assert choose_places(raw, 300, 2, decodes=False) == ["streamed"] * 20
    assert choose_places(raw, 1300, 2, decodes=False).count("streamed") == 10
    with pytest.raises(ValueError, match="at least 300 bytes"):
        choose_places(raw, 299, 2, decodes=False)
