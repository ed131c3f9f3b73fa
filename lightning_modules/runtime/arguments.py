"""The command line as the parser takes it: installed files found, and null where it is meant."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lightning_modules.runtime.network_names import find_networks
from lightning_modules.runtime.paths import find_configs

__all__ = ["prepare_arguments"]

_GROUPS = frozenset(
    (
        *("teacher", "student", "images", "gradient_targets", "label_targets", "generator_loss", "tangent_normal"),
        *("stages", "generator_training", "generator_phase", "vae_phase", "query_phase", "student_phase", "federation"),
    )
)


def prepare_arguments(args: Sequence[str]) -> list[str]:
    """Arguments of a command that builds a model.

    Args:
        args: As they were typed.

    Raises:
        ValueError: A network that is named cannot be found.
    """
    return _null_by_configuration(find_networks(find_configs(args)))


def _null_by_configuration(args: Sequence[str]) -> list[str]:
    """Replaces `--model.GROUP.FIELD=null` by a configuration that says so.

    jsonargparse 4.53 reads the null of a dataclass's field that may be an object, such as `images.prior`, as the class
    path "None" when it comes by a flag, and as null when it comes by a configuration.
    """
    prepared: list[str] = []
    left = list(args)
    while left:
        argument = left.pop(0)
        name, equals, value = argument.partition("=")
        if not equals and left:
            value = left[0]
        words = name.removeprefix("--model.").removeprefix("init_args.").split(".")
        if not name.startswith("--model.") or value != "null" or len(words) != 2 or words[0] not in _GROUPS:
            prepared.append(argument)
            continue
        if not equals:
            left.pop(0)
        content = {"model": {"init_args": {words[0]: {words[1]: None}}}}
        prepared.append(f"--config={json.dumps(content)}")
    return prepared
