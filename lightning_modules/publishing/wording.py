"""Words of a run, without what identifies the machine that it was made on."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["without_folders"]

#: An absolute path of at least one folder and a name.
_PATH = re.compile(r"(?<![\w.:/<>])(?:/[\w.@+ -]*[\w.@+-])+/(?=[\w.@+-]+)")


def without_folders(value: Any) -> Any:
    """Text, or plain values of texts, in which absolute paths are shortened to the names of files.

    >>> without_folders("used by /home/me/ledgers/a.jsonl, /tmp/b.jsonl: see <https://arxiv.org/abs/2304.12528>")
    'used by a.jsonl, b.jsonl: see <https://arxiv.org/abs/2304.12528>'
    """
    if isinstance(value, str):
        return _PATH.sub("", value)
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return value
