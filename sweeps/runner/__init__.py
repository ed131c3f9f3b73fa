"""Runs and renders many fits: pipelines, tables, sweeps, and the documents made from their results."""
