"""Losses and other pure functions that the papers' algorithms are written in."""

from lightning_modules.losses.targets import CandidateSchedule, ConfidentCandidates, FixedCandidates, LinearCandidates

__all__ = ["CandidateSchedule", "ConfidentCandidates", "FixedCandidates", "LinearCandidates"]
