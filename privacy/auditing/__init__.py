"""Auditing by attack: lower bounds on ε from a distinguishing game that anybody can play.

An accountant gives an upper bound that holds if its assumptions do; an audit gives a lower bound that holds whatever
the code really does, at a stated confidence. A claimed ε below an audited one **fails**. An audit that stays
below a claim proves nothing: a better attacker may still come.
"""

from __future__ import annotations

from privacy.auditing.bounds import (
    clopper_pearson_epsilon,
    clopper_pearson_interval,
    gaussian_audit_epsilon,
    gaussian_audit_mu,
)
from privacy.auditing.game import Method, Sampler, audit, rounds
from privacy.auditing.one_run import audit_one_run, one_run_epsilon, one_run_p_value
from privacy.auditing.result import AuditResult
from privacy.auditing.scores import Score, gaussian_score, laplace_score, learnt_score, table_score

__all__ = [
    "AuditResult",
    "Method",
    "Sampler",
    "Score",
    "audit",
    "audit_one_run",
    "clopper_pearson_epsilon",
    "clopper_pearson_interval",
    "gaussian_audit_epsilon",
    "gaussian_audit_mu",
    "gaussian_score",
    "laplace_score",
    "learnt_score",
    "one_run_epsilon",
    "one_run_p_value",
    "rounds",
    "table_score",
]
