"""Which weights stay on the GPU, and how, within a budget of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from .weight import CompressedWeight

Place = Literal["raw", "compressed", "streamed"]
_MOST_RAW = 3  # of the largest weights, while others are streamed: a head, and embeddings that are read as a whole


class Placed(NamedTuple):
    """A weight and where it is to be. by_row: single rows of it are read (by embeddings), where they lie. whole: all of
    it is read."""

    weight: CompressedWeight
    place: Place
    by_row: bool
    whole: bool

    @property
    def lands(self) -> bool:
        """Whether it takes landing buffers."""
        return self.place == "streamed" and self.whole

    @property
    def is_decoded(self) -> bool:
        """Whether it takes the buffer that weights are decoded to."""
        return self.place != "raw" and self.whole


class Size(NamedTuple):
    """What the choice depends on, of a weight. raw, compressed: bytes. whole: as for Placed. keep: as the user said."""

    raw: int
    compressed: int
    whole: bool
    keep: bool = False


def choose_places(sizes: Sequence[Size], budget: int, prefetch: int, *, decodes: bool = True) -> list[Place]:
    """Where weights are to be, so that the fewest bytes cross the link and, second, the fewest are decoded.

    A byte that crosses the link takes some 25 times as long as one that is decoded, so a weight stays compressed on the
    GPU as long as any is streamed, and becomes raw when none is. Weights that stay are spread evenly over the others,
    so that copies go on while they are read. Embeddings, of which few rows are read, come last. The largest weights may
    be raw from the start: then all buffers are shorter.

    Args:
        sizes: in the order in which they are read.
        budget: bytes of GPU memory for weights, the buffer they are decoded to, and landing buffers.
        prefetch: weights on their way while one is read.
        decodes: whether there is a buffer that weights are decoded to.

    Returns:
        A place for each.

    Raises:
        ValueError: the budget is less than the buffers and what the user keeps.
    """
    if sum(size.raw for size in sizes) <= budget:
        return ["raw"] * len(sizes)
    largest = sorted((at for at, size in enumerate(sizes) if size.whole), key=lambda at: -sizes[at].raw)
    choices = [set(largest[:count]) for count in range(min(_MOST_RAW, len(largest)) + 1)]
    found: list[tuple[int, int, list[Place]]] = []
    for raw in choices:
        places = _places_beside(raw, sizes, budget, prefetch, decodes)
        if places is not None:
            crossing = sum(sizes[at].compressed for at in largest if places[at] == "streamed")
            decoded = sum(size.raw for size, place in zip(sizes, places, strict=True) if place != "raw")
            found.append((crossing, decoded, places))
    if not found:
        least = min(_buffer_bytes(raw, sizes, prefetch, decodes) + _kept_bytes(raw, sizes) for raw in choices)
        raise ValueError(
            f"gpu_budget: want at least {least} bytes for buffers and what is kept, got {budget} bytes beside what "
            f"else the model has on the GPU (prefetch={prefetch}; less takes less)"
        )
    return min(found)[2]


def _places_beside(
    raw: set[int], sizes: Sequence[Size], budget: int, prefetch: int, decodes: bool
) -> list[Place] | None:
    """Where the others are to be if these are raw; None if the budget does not do."""
    left = budget - sum(sizes[at].raw for at in raw)
    rest = [at for at in range(len(sizes)) if at not in raw]
    hot = [at for at in rest if sizes[at].whole]
    places: list[Place] = ["raw" if at in raw else "streamed" for at in range(len(sizes))]
    beside_decoding = left - max((sizes[at].raw for at in hot if decodes), default=0)
    if sum(sizes[at].compressed for at in rest) <= beside_decoding:
        beside_decoding -= sum(sizes[at].compressed for at in rest)
        # As many as fit become raw, those that the user keeps first.
        for at in sorted(rest, key=lambda at: (not sizes[at].keep, not sizes[at].whole)):
            more = sizes[at].raw - sizes[at].compressed
            places[at] = "raw" if more <= beside_decoding else "compressed"
            beside_decoding -= more if places[at] == "raw" else 0
        return places
    left = budget - _buffer_bytes(raw, sizes, prefetch, decodes) - _kept_bytes(raw, sizes)
    if left < 0:
        return None
    stays = {at for at in rest if sizes[at].keep}
    stays |= _spread([(at, sizes[at].compressed) for at in hot if at not in stays], left)
    for at in stays:
        places[at] = "compressed"
    return places


def _buffer_bytes(raw: set[int], sizes: Sequence[Size], prefetch: int, decodes: bool) -> int:
    """Raw weights, and buffers for the others."""
    hot = [size for at, size in enumerate(sizes) if size.whole and at not in raw]
    decoded = max((size.raw for size in hot), default=0) if decodes else 0
    landing = max((size.compressed for size in hot), default=0)
    return sum(sizes[at].raw for at in raw) + decoded + (prefetch + 1) * landing


def _kept_bytes(raw: set[int], sizes: Sequence[Size]) -> int:
    return sum(size.compressed for at, size in enumerate(sizes) if size.keep and at not in raw)


def _spread(sized: Sequence[tuple[int, int]], room: int) -> set[int]:
    """sized: (number, bytes). Returns numbers whose bytes fit the room, as evenly spread as their sizes allow."""
    total = sum(length for _, length in sized)
    chosen, credit, left = set(), 0.0, room
    for number, length in sized:
        credit += length * min(1.0, room / total)
        if credit >= length / 2 and length <= left:
            chosen.add(number)
            credit -= length
            left -= length
    return chosen
