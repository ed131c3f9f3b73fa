"""Accountants in Opacus's form, registered with Opacus by name as soon as this package is imported.

>>> from opacus import PrivacyEngine
>>> PrivacyEngine(accountant="transcription_rdp").accountant.get_epsilon(1e-5)
0.0

Kept apart from `privacy` itself, which needs no Opacus and imports in a fraction of its time.
"""

from __future__ import annotations

from opacus.accountants import register_accountant

from privacy.accountants.base import ReleaseAccountant
from privacy.accountants.label import LabelDPAccountant
from privacy.accountants.record import ExactAccountant, RDPAccountant

ACCOUNTANTS: tuple[type[ReleaseAccountant], ...] = (RDPAccountant, ExactAccountant, LabelDPAccountant)

for _accountant in ACCOUNTANTS:
    # force: importing twice, as a reload does, is no conflict.
    register_accountant(_accountant.mechanism(), _accountant, force=True)

__all__ = ["ACCOUNTANTS", "ExactAccountant", "LabelDPAccountant", "RDPAccountant", "ReleaseAccountant"]
