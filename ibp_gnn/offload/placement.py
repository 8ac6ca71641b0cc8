"""Which weights stay on the GPU, and how, within a budget of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from .weight import CompressedWeight

Place = Literal["raw", "compressed", "streamed"]


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


def choose_places(sizes: Sequence[Size], budget: int, prefetch: int) -> list[Place]:
    """Where weights are to be, so that the fewest bytes cross the link and, second, the fewest are decoded.

    A byte that crosses the link takes some 25 times as long as one that is decoded, so a weight stays compressed on the
    GPU as long as any is streamed, and becomes raw when none is. Weights that stay are spread evenly over the others,
    so that copies go on while they are read. Embeddings, of which few rows are read, come last.

    Args:
        sizes: in the order in which they are read.
        budget: bytes of GPU memory for weights, the buffer they are decoded to, and landing buffers.
        prefetch: weights on their way while one is read.

    Returns:
        A place for each.

    Raises:
        ValueError: the budget is less than the buffers that the largest weight needs.
    """
    if sum(size.raw for size in sizes) <= budget:
        return ["raw"] * len(sizes)
    hot = [at for at, size in enumerate(sizes) if size.whole]
    decode_bytes = max((sizes[at].raw for at in hot), default=0)
    left = budget - decode_bytes
    if sum(size.compressed for size in sizes) <= left:
        return _promote(sizes, left)
    left -= (prefetch + 1) * max((sizes[at].compressed for at in hot), default=0)
    if left < 0:
        raise ValueError(
            f"gpu_budget: want at least {budget - left} bytes for the buffers of the largest weight, got {budget} "
            f"bytes beside what else the model has on the GPU (prefetch={prefetch}; less takes less)"
        )
    stays = {at for at, size in enumerate(sizes) if size.keep}
    left -= sum(sizes[at].compressed for at in stays)
    if left < 0:
        raise ValueError(f"keep: want weights that fit the gpu_budget, got {-left} bytes too many")
    stays |= _spread([(at, sizes[at].compressed) for at in hot if at not in stays], left)
    return ["compressed" if at in stays else "streamed" for at in range(len(sizes))]


def _promote(sizes: Sequence[Size], left: int) -> list[Place]:
    """All stay compressed; as many as fit become raw, those that the user keeps first."""
    places: list[Place] = ["compressed"] * len(sizes)
    left -= sum(size.compressed for size in sizes)
    for at in sorted(range(len(sizes)), key=lambda at: (not sizes[at].keep, not sizes[at].whole)):
        if sizes[at].raw - sizes[at].compressed <= left:
            places[at] = "raw"
            left -= sizes[at].raw - sizes[at].compressed
    return places


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
