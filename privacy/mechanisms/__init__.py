"""Mechanisms: how much a record can move, how noise is drawn, and what both are charged as."""
