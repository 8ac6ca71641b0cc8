"""All rows of a feature matrix, compressed, in CPU memory or in a file."""
