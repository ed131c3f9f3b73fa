"""Name and arguments of a published network: just enough to rebuild it."""

from __future__ import annotations

import inspect

from lightning_modules import networks
from lightning_modules.networks import Network
from lightning_modules.publishing.errors import ExportError

__all__ = ["with_all_arguments"]


def with_all_arguments(network: Network, *, num_classes: int, image_shape: tuple[int, int, int]) -> Network:
    """The same with what it took from the data, so that it can be called with its arguments and nothing more.

    Raises:
        ExportError: It names no class.
    """
    try:
        target = network.target
    except ValueError as error:
        raise ExportError(f"the network cannot be exported: {error}") from error
    name = f"{networks.__name__}.{network.name}" if str(network.name).isidentifier() else str(network.name)
    parameters = inspect.signature(target).parameters
    open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    defaults = {key: one.default for key, one in parameters.items()} if name.startswith(networks.__name__) else {}
    plain = {key: value for key, value in defaults.items() if isinstance(value, (bool, int, float, str))}
    arguments = {**plain, **network.arguments}
    for key, value in (("num_classes", num_classes), ("image_shape", list(image_shape))):
        if key in parameters or (key == "num_classes" and open_ended):
            arguments[key] = network.arguments.get(key, value)
    if arguments.get("weights") is not None and name.startswith("torchvision."):
        # The published weights take their place, and nothing has to be fetched for them.
        arguments["weights"] = None
        if name.endswith((".googlenet", ".inception_v3")):
            arguments.setdefault("transform_input", True)  # what these two do where they are given weights
    if arguments.get("pretrained") and name.startswith("timm."):
        arguments["pretrained"] = False
    return Network(name=name, arguments=arguments)
