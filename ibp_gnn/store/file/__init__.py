"""Store files: a CompressedFeatureStore on disk. The format is written down in `header`."""
