"""Comparisons: an experiment file becomes cells, runs, measurements and a table."""
