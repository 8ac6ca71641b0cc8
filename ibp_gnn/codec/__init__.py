"""Rows of one dtype and shape to compressed rows and back, on the CPU and on GPUs."""
