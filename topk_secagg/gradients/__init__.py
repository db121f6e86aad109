"""Gradient files, layouts and quantisation."""
