"""Small linear classifiers on fixed features, as objects and as a configuration has them."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from lightning_modules.networks import LinearOnFeatures, Scattering, Whitening
from lightning_modules.networks.fixed_features import WhitenedFeatures

_WHITENING = ("power", "images", "mirrored", "shifts")


def linear(features: type[nn.Module] = Scattering, *, whitened: bool = False, **settings: Any) -> LinearOnFeatures:
    """With all settings by name, whatever part of it they are of."""
    outer = {name: settings.pop(name) for name in ("num_classes", "image_shape", "prior") if name in settings}
    whitening = {name: settings.pop(name) for name in _WHITENING if name in settings}
    return LinearOnFeatures(
        **{"image_shape": (1, 8, 8), **outer},
        features=partial(features, **settings),
        whitening=Whitening(**whitening) if whitened else None,
    )


def whitened(features: type[nn.Module] = Scattering, **settings: Any) -> WhitenedFeatures:
    """The whitened features of one."""
    found = linear(features, whitened=True, **settings).feature_extractor
    assert isinstance(found, WhitenedFeatures)
    return found


def linear_spec(features: str = "Scattering", *, whitening: dict[str, Any] | None = None, **settings: Any) -> Any:
    """`class_path` and `init_args`; `settings` are of the features."""
    extractor = {"class_path": features, "init_args": settings}
    return {"class_path": "LinearOnFeatures", "init_args": {"features": extractor, "whitening": whitening}}
