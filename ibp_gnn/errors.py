"""The package's own exception, which Python code and both compiled extensions raise."""

from __future__ import annotations


class FormatError(ValueError):
    """Compressed rows, or a file of them, are damaged or of another format."""
