"""Features of any classifier: what its last linear layer is given."""

from __future__ import annotations

from torch import Tensor, nn

from lightning_modules.networks.classifiers import ImageClassifier


def logits_and_features(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Run `model` once and return its logits with the features that they are a linear function of.

    This project's classifiers name both. Of any other network the features are the input of its last `nn.Linear` (in
    order of registration, its own `head` first where that is linear), caught by a hook that is removed again.

    Args:
        model: a classifier.
        images: (N, C, H, W).

    Returns:
        Logits (N, c) and features (N, F).

    Raises:
        ValueError: if the model has no `nn.Linear`, or does not call its last one exactly once with one row per
            image.
    """
    if isinstance(model, ImageClassifier):
        features = model.forward_features(images)
        return model.head(features), features
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Linear):
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise ValueError(
                f"model: {type(model).__name__} has no nn.Linear, so its features are unknown;"
                " derive it from ImageClassifier (forward_features and head)"
            )
        head = linear[-1]
    caught: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _module, inputs: caught.append(inputs[0]))
    try:
        logits: Tensor = model(images)
    finally:
        handle.remove()
    if len(caught) != 1 or caught[0].dim() != 2 or len(caught[0]) != len(images):
        raise ValueError(
            f"model: the last nn.Linear of {type(model).__name__} was given {[tuple(x.shape) for x in caught]},"
            f" not one (N, F) tensor for N={len(images)} images;"
            " derive the model from ImageClassifier (forward_features and head)"
        )
    return logits, caught[0]
