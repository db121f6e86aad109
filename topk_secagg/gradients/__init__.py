"""Gradient files, layouts, selection and quantisation."""
