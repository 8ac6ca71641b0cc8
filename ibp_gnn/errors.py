"""The package's own exception, which Python code and both compiled extensions raise."""

from __future__ import annotations


class FormatError(ValueError):
    """Compressed rows, or a file of them, are damaged or of another format.

    Example:
        >>> with open("damaged.ibp", "wb") as file: _ = file.write(b"IBPSTORE")
        >>> try: ibp_gnn.CompressedFeatureStore.load("damaged.ibp")
        ... except ibp_gnn.FormatError as error: print(error)
        damaged.ibp: want at least 40 bytes, got 8
    """
