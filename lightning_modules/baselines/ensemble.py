"""What the server does with the clients' models in the baselines: each use is charged before it is made.

All of them take the mean of the clients' logits for the ensemble (AVGLOGITS of Lin et al. 2020, and DENSE).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_modules.losses.targets import Annotation
from lightning_modules.networks.bn_statistics import logits_and_statistics
from lightning_modules.networks.features import logits_and_features
from lightning_modules.teachers.private_ensemble import PrivateEnsemble
from lightning_modules.teachers.private_model import PrivateModel
from privacy.annotators import Annotator, ResponseAnnotator

__all__ = [
    "SERVER_HOLDS_MODELS",
    "ensemble_targets",
    "mean_logits",
    "mean_logits_and_features",
    "mean_logits_and_statistics",
    "require_response_annotator",
    "unprotected_clients",
]

SERVER_HOLDS_MODELS = "the clients sent their models to the server, without noise: nothing protects them from it"
"""What is said beside every guarantee of a baseline that distils at the server."""


def require_response_annotator(annotator: Annotator) -> None:
    """Refuses another annotator: a baseline releases responses as they are.

    Raises:
        ValueError: It is another.
    """
    if not isinstance(annotator, ResponseAnnotator):
        raise ValueError(f"annotator must be a ResponseAnnotator, got {type(annotator).__name__}")


def unprotected_clients(
    teacher: PrivateModel, annotator: Annotator, *, reason: str, device: torch.device
) -> list[nn.Module]:
    """Every client's network itself, in evaluation mode and without gradients of its weights.

    Args:
        teacher: The clients' models.
        annotator: Charged first, once in a run, with a release that nothing bounds.
        reason: What is done with them, in words; the same in each call.
        device: Where they are to be.

    Raises:
        BudgetExceeded: The target allows no such thing.
    """
    return [
        teacher.unprotected(annotator, reason=reason, teacher=client).to(device)
        for client in range(teacher.num_teachers)
    ]


def ensemble_targets(teacher: PrivateModel, annotator: ResponseAnnotator, images: Tensor) -> Annotation:
    """Softmax of the clients' mean logits of images (B, C, H, W): charged as B queries, released without noise."""
    assert isinstance(teacher, PrivateEnsemble)
    return Annotation(functional.softmax(annotator.annotate(teacher.each(images).mean(dim=0)), dim=1))


def mean_logits(networks: Sequence[nn.Module], images: Tensor) -> Tensor:
    """Mean logits, (N, C, H, W) → (N, c), float32, with their graph."""
    return torch.stack([network(images).float() for network in networks]).mean(dim=0)


def mean_logits_and_features(networks: Sequence[nn.Module], images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean logits (N, c), and the features of all networks side by side (N, sum of F), with their graph."""
    logits, features = zip(*(logits_and_features(network, images) for network in networks), strict=True)
    return torch.stack(logits).float().mean(dim=0), torch.cat(features, dim=1).float()


def mean_logits_and_statistics(networks: Sequence[nn.Module], images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean logits (N, c), and the mean over networks of the distance from their BatchNorm statistics (DENSE's L_BN).

    Each network itself is called, with hooks on its own layers: hooks on an object that only stands for the networks
    never fire, and the term is then 0 for every image (see `logits_and_statistics`, which refuses that).

    Args:
        networks: Classifiers with BatchNorm, in evaluation mode.
        images: (N, C, H, W).

    Raises:
        ValueError: A network without such statistics.
    """
    found = [logits_and_statistics(network, images) for network in networks]
    return torch.stack([logits.float() for logits, _ in found]).mean(dim=0), torch.stack(
        [one for _, one in found]
    ).mean()
