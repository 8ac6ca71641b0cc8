"""The hottest rows of a store in GPU memory, and how they are chosen and fetched ahead."""
