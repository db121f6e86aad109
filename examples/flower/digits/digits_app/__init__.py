"""Digits in numpy over Flower, with secure aggregation."""
