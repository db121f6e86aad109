"""Reals in and out: gradient files, layouts, selection and quantisation."""
