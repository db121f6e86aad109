"""Digits with PyTorch over Flower, with secure aggregation."""
