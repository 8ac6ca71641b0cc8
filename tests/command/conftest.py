"""Fixtures of the commands' tests."""

from __future__ import annotations

import feature_files

rows, npy = feature_files.rows, feature_files.npy
