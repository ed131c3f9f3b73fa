"""Messages of a federation as Flower carries them: plain values as JSON, and arrays as their bytes.

Both ways, without a package of Flower's and without pickle. What comes from another machine is checked here: what is
malformed is a `WireError`, and nothing of it is used.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from lightning_modules.federated.messages import Introduction, Question, Terms
from lightning_modules.losses.targets import GradientTargets

__all__ = [
    "INTRODUCE",
    "Scalar",
    "WireError",
    "from_bytes",
    "pack",
    "pack_question",
    "read",
    "read_answer",
    "read_introduction",
    "read_question",
    "read_terms",
    "to_bytes",
    "unpack",
]

Scalar = bool | bytes | float | int | str
"""What one entry of a Flower configuration may be."""

_VERSION = 4
_TYPES = {torch.bool: "|b1", torch.float32: "<f4", torch.int64: "<i8"}
_T = TypeVar("_T")


class WireError(ValueError):
    """Data from another machine that are not a message of a federation."""


def pack(kind: str, **values: Any) -> dict[str, Scalar]:
    """A message of plain values."""
    return {"version": _VERSION, "kind": kind, "content": json.dumps(values)}


def unpack(config: Mapping[str, Scalar]) -> tuple[str, dict[str, Any]]:
    """Kind and values of a message.

    Raises:
        WireError: It is of another version, or cannot be read.
    """
    version, kind, content = (config.get(name) for name in ("version", "kind", "content"))
    if version != _VERSION or not isinstance(kind, str):
        raise WireError(f"a message must be of version {_VERSION}, got {version!r}: install one version everywhere")
    try:
        values = json.loads(content) if isinstance(content, str) else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise WireError(f"the content of a message {kind[:40]!r} cannot be read")
    return kind, values


def to_bytes(tensor: torch.Tensor) -> bytes:
    """The values of a tensor of bool, float32 or int64, in C order; the receiver knows shape and type."""
    return tensor.detach().cpu().numpy().astype(_TYPES[tensor.dtype], copy=False).tobytes()


def from_bytes(data: bytes, *, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Inverse of `to_bytes`.

    Raises:
        WireError: They are not as many as this shape takes, or truth values that are neither.
    """
    expected = math.prod(shape) * np.dtype(_TYPES[dtype]).itemsize
    if not isinstance(data, bytes) or len(data) != expected:
        raise WireError(f"an array of shape {tuple(shape)} takes {expected:,} bytes, got {len(data):,}")
    if dtype == torch.bool and any(data.translate(None, b"\x00\x01")):
        raise WireError("an array of truth values holds others")
    return torch.from_numpy(np.frombuffer(data, dtype=_TYPES[dtype]).reshape(shape).copy())


# --- what values a message may hold ---

Rules = Mapping[str, Callable[[Any], bool]]


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda given: isinstance(given, int) and not isinstance(given, bool) and given >= least


def _or_null(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda given: given is None or holds(given)


def _text(pattern: str) -> Callable[[Any], bool]:
    return lambda given: isinstance(given, str) and re.fullmatch(pattern, given) is not None


def _shape(given: Any) -> bool:
    return isinstance(given, list | tuple) and len(given) == 3 and all(_whole(1)(length) for length in given)


def _sentences(given: Any) -> bool:
    # They are printed in the server's guarantee: nothing that could pass for another line of it. The frequencies of a
    # thousand classes fit.
    short = isinstance(given, list) and len(given) <= 20
    return short and all(isinstance(one, str) and 0 < len(one) <= 20_000 and one.isprintable() for one in given)


def _partition(given: Any) -> bool:
    if not isinstance(given, dict) or set(given) != {"data", "place", "settings", "share"}:
        return False
    share = given["share"]
    known = isinstance(given["data"], str) and isinstance(given["settings"], dict)
    pair = share is None or (isinstance(share, list) and len(share) == 2)
    return known and pair and len(json.dumps(given)) <= 20_000


def _loss(given: Any) -> bool:
    return isinstance(given, dict) and set(given) <= {field.name for field in dataclasses.fields(GradientTargets)}


INTRODUCE: Rules = {"num_classes": _whole(2), "image_shape": _shape}
_ASK: Rules = {"number": _whole(0)}
_INTRODUCTION: Rules = {
    "name": _text(r"[\w][\w .-]{0,99}"),
    "num_records": _or_null(_whole(1)),
    "training": _text(r"[^\n]{0,200}"),
    "releases": _or_null(lambda given: isinstance(given, list)),
    "secure": lambda given: isinstance(given, bool),
    "assumptions": _sentences,
    "partition": _or_null(_partition),
}
_TERMS: Rules = {
    "run": _text("[0-9a-f]{32}"),
    "switch": _text("data|label"),
    "noise_by": _text("client|server"),
    "calls": _or_null(_whole(0)),
    "batch_size": _whole(1),
    "num_classes": _whole(2),
    "image_shape": _shape,
    "mechanism": lambda given: isinstance(given, dict),
    "loss": _loss,
    "server_mu": _or_null(lambda mu: isinstance(mu, int | float) and not isinstance(mu, bool) and mu >= 0),
}


def read(values: Mapping[str, Any], rules: Rules, build: Callable[[Mapping[str, Any]], _T]) -> _T:
    """What `build` makes of a message's values.

    Raises:
        WireError: A value is missing, unknown or not what it may be.
    """
    if odd := set(values) ^ set(rules):
        raise WireError(f"a message must hold {', '.join(sorted(rules))}: missing or unknown are {sorted(odd)}"[:400])
    for name, holds in rules.items():
        if not holds(values[name]):
            raise WireError(f"{name} of a message must not be {str(values[name])[:40]!r}")
    try:
        return build(values)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise WireError("the values of a message cannot be read") from error


def read_introduction(values: Mapping[str, Any]) -> Introduction:
    """A client's description of itself."""
    return read(values, _INTRODUCTION, Introduction.from_dict)


def read_terms(values: Mapping[str, Any]) -> Terms:
    """The terms of a run; the client decides which settings a server may choose."""
    return read(values, _TERMS, Terms.from_dict)


def pack_question(question: Question) -> tuple[list[bytes], dict[str, Scalar]]:
    """One round's question: images, outputs and, of labels, candidates; and its number."""
    tensors = [question.images, question.outputs, *([] if question.candidates is None else [question.candidates])]
    return [to_bytes(tensor) for tensor in tensors], pack("ask", number=question.number)


def read_question(arrays: Sequence[bytes], values: Mapping[str, Any], terms: Terms) -> Question:
    """Inverse of `pack_question`, for a client that has agreed to these terms.

    Raises:
        WireError: It is not a question of theirs.
    """
    outputs = (terms.batch_size, terms.num_classes)
    wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "images": ((terms.batch_size, *terms.image_shape), torch.float32),
        "outputs": (outputs, torch.float32),
        **({"candidates": (outputs, torch.bool)} if terms.switch == "label" else {}),
    }
    if len(arrays) != len(wanted):
        raise WireError(f"a question must hold {', '.join(wanted)}, got {len(arrays)} arrays")
    tensors: dict[str, Any] = {
        name: from_bytes(data, shape=shape, dtype=dtype)
        for data, (name, (shape, dtype)) in zip(arrays, wanted.items(), strict=True)
    }
    return read(values, _ASK, lambda known: Question(**known, **tensors))


def read_answer(arrays: Sequence[bytes], values: Mapping[str, Any], question: Question) -> torch.Tensor:
    """What a client answered: gradients (B, c), or of labels classes (B,), that the server may use.

    That a client sends what is not finite reveals something of its machine and nothing of its records: what a teacher
    gives that is not finite becomes zeros, or class 0, before it leaves the client.

    Raises:
        WireError: It is not an answer to this question.
    """
    if values.get("number") != question.number or len(arrays) != 1:
        raise WireError(f"{len(arrays)} arrays for question {str(values.get('number'))[:20]}, not {question.number}")
    if question.candidates is None:
        gradients = from_bytes(arrays[0], shape=question.outputs.shape, dtype=torch.float32)
        if not bool(gradients.isfinite().all()):
            raise WireError("a gradient is not finite")
        return gradients
    classes = from_bytes(arrays[0], shape=question.outputs.shape[:1], dtype=torch.int64)
    chosen = classes.clamp(0, question.outputs.shape[1] - 1)
    candidate = question.candidates.cpu().gather(1, chosen[:, None])[:, 0]
    if not bool((candidate & (chosen == classes)).all()):
        raise WireError("a class is not a candidate")
    return classes
