"""Auditing by attack: lower bounds on ε from a distinguishing game that anyone can play.

An accountant gives an upper bound that holds if its assumptions do; an audit gives a lower bound that holds whatever
the code really does, at a stated confidence. A claimed ε below an audited one **fails**. An audit that stays
below a claim proves nothing: a better attacker may still exist.
"""

from __future__ import annotations

from privacy.auditing.bounds import (
    clopper_pearson_epsilon,
    clopper_pearson_interval,
    gaussian_audit_epsilon,
    gaussian_audit_mu,
    one_run_epsilon,
)
from privacy.auditing.game import AuditResult, Method, Sampler, Score, audit, learnt_score

__all__ = [
    "AuditResult",
    "Method",
    "Sampler",
    "Score",
    "audit",
    "clopper_pearson_epsilon",
    "clopper_pearson_interval",
    "gaussian_audit_epsilon",
    "gaussian_audit_mu",
    "learnt_score",
    "one_run_epsilon",
]
