"""Membership attacks by name, and each on several models in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from privacy.attacks.answers import Answers, Shadows
from privacy.attacks.label_only import label_only
from privacy.attacks.lira import lira, lira_offline
from privacy.attacks.loss_threshold import loss_threshold
from privacy.attacks.result import AttackResult
from privacy.attacks.rmia import rmia

MembershipAttack: TypeAlias = Callable[[Answers, Shadows], NDArray[np.float64]]
"""From what the attacked model answers and what shadow models do to one score a record, larger for members."""

MEMBERSHIP: Mapping[str, MembershipAttack] = {
    "loss": loss_threshold,
    "lira": lira,
    "lira-offline": lira_offline,
    "rmia": rmia,
    "label-only": label_only,
}
"""By the names of the command line."""


def attack_each(
    models: Shadows,
    *,
    targets: int,
    method: MembershipAttack = lira,
    kinds: NDArray[np.str_] | None = None,
) -> dict[str, AttackResult]:
    """Attacks the first models, each using the models that come after all targets.

    No target is another one's shadow: given the shadows, the targets are independent, and `AttackResult.audited` is
    valid for all of them together.

    Args:
        models: What targets and shadows answer.
        targets: How many are attacked; two at least are left.
        method: The attack.
        kinds: (N,), of what kind each record is; None: all are of the kind `record`.

    Returns:
        Of each kind, of the records that one shadow at least has seen and two have not; all targets together. Kinds
        without members, such as the population, are left out, and those without others.

    Raises:
        ValueError: Too few models are left.
    """
    if not 1 <= targets <= len(models) - 2:
        raise ValueError(f"targets must be from 1 to {len(models) - 2}, as 2 shadows are needed, got {targets}")
    shadows = models.at(slice(targets, None))
    seen = shadows.members.sum(axis=0)
    kept = (seen >= 1) & (seen <= len(shadows) - 2)
    scores = np.stack([method(models.answers(index), shadows) for index in range(targets)])
    groups = np.full(len(kept), "record") if kinds is None else kinds
    return {
        str(kind): AttackResult(scores[:, taken], models.members[:targets, taken], coins=True)
        for kind in dict.fromkeys(groups)
        if len(np.unique(models.members[:targets, taken := kept & (groups == kind)])) == 2
    }
