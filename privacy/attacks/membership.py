"""Membership attacks by name, and running one on several models."""

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
"""Maps the answers of the attacked model and of shadow models to one score per record, larger for members."""

MEMBERSHIP: Mapping[str, MembershipAttack] = {
    "loss": loss_threshold,
    "lira": lira,
    "lira-offline": lira_offline,
    "rmia": rmia,
    "label-only": label_only,
}
"""Attacks by their names on the command line."""


def attack_each(
    models: Shadows, *, targets: int, method: MembershipAttack = lira, kinds: NDArray[np.str_] | None = None
) -> dict[str, AttackResult]:
    """Attack the first models, using the remaining ones as shadows.

    No target is another one's shadow: given the shadows, targets are independent, and `AttackResult.audited` is valid
    for all of them together.

    Args:
        models: Answers of targets and shadows.
        targets: Number of attacked models; at least two others must be left.
        method: The attack.
        kinds: (N,), the kind of each record; None means that all are of the kind `record`.

    Returns:
        Results by kind, for all targets together, on records that at least one shadow has seen and at least two have
        not. Kinds without members, such as the population, or without non-members are left out.

    Raises:
        ValueError: Fewer than two shadows would be left.
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
