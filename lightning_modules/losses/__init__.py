"""Losses and other pure functions that the papers' algorithms are written in."""

from lightning_modules.losses.targets import (
    CandidateSchedule as CandidateSchedule,
    ConfidentCandidates as ConfidentCandidates,
    FixedCandidates as FixedCandidates,
    LinearCandidates as LinearCandidates,
)
