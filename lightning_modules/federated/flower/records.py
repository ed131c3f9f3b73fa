"""Messages of a federation as what Flower carries: dictionaries of scalars, and arrays as bytes in NumPy's format.

Both ways, without a package of Flower's and without pickle. Whatever comes from another machine is checked here: what
is malformed is a `RecordError`, and nothing of it is used.
"""

from __future__ import annotations

import dataclasses
import io
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
    "RecordError",
    "Scalar",
    "array_of",
    "config_of",
    "kind_of",
    "message_of",
    "question_from",
    "question_to",
    "read_introduction",
    "read_shape",
    "read_terms",
    "shape_to",
    "tensor_of",
]

Scalar = bool | bytes | float | int | str
"""What one entry of a Flower configuration may be."""

_VERSION = 2
_KINDS = {"|b1": torch.bool, "<f4": torch.float32, "<i8": torch.int64}
_RUN = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[\w][\w .-]{0,99}")
#: Longest sentence about a teacher: the frequencies of a thousand classes fit.
_SENTENCE = 20_000
_T = TypeVar("_T")


class RecordError(ValueError):
    """What came from another machine is no message of a federation."""


def array_of(tensor: torch.Tensor) -> bytes:
    """A tensor as a file in NumPy's format: bool, float32 or int64, of any shape.

    Raises:
        ValueError: It is of another type.
    """
    array = np.ascontiguousarray(tensor.detach().cpu().numpy())
    if array.dtype.str not in _KINDS:
        raise ValueError(f"a tensor must be bool, float32 or int64 to be sent, got {tensor.dtype}")
    buffer = io.BytesIO()
    np.save(buffer, array.reshape(tensor.shape), allow_pickle=False)
    return buffer.getvalue()


def tensor_of(data: bytes) -> torch.Tensor:
    """Inverse of `array_of`.

    The header is read first: an object array is refused before anything of it is built, and no more memory is taken
    than there are bytes, whatever shape they claim.

    Raises:
        RecordError: They are no array of these types in this format.
    """
    buffer = io.BytesIO(data)
    try:
        if np.lib.format.read_magic(buffer) != (1, 0):
            raise ValueError("another version")
        shape, fortran, kind = np.lib.format.read_array_header_1_0(buffer)
    except Exception as error:  # NumPy hands on whatever Python's own tokenizer and parser raise
        raise RecordError("an array is not in NumPy's format") from error
    if kind.str not in _KINDS or kind.hasobject or fortran:
        raise RecordError(f"an array must be of bool, float32 or int64 in C order, got {kind.str[:20]}")
    rest = data[buffer.tell() :]
    if any(length < 0 for length in shape) or math.prod(shape) * kind.itemsize != len(rest):
        raise RecordError("an array's bytes are not as many as its shape takes")
    if kind.str == "|b1" and any(rest.translate(None, b"\x00\x01")):
        raise RecordError("an array of truth values holds others")
    return torch.from_numpy(np.frombuffer(rest, dtype=kind).reshape(shape).copy())


def config_of(kind: str, **values: Any) -> dict[str, Scalar]:
    """A message without tensors: its kind, and plain values."""
    return {"version": _VERSION, "kind": kind, "content": json.dumps(values)}


def kind_of(config: Mapping[str, Scalar]) -> str:
    """What a message is about.

    Raises:
        RecordError: It is of another version, or says nothing of the kind.
    """
    version, kind = config.get("version"), config.get("kind")
    if version != _VERSION or not isinstance(kind, str):
        raise RecordError(f"a message must be of version {_VERSION}, got {version!r}: install one version everywhere")
    return kind


def message_of(config: Mapping[str, Scalar], *, kind: str) -> dict[str, Any]:
    """The values that `config_of` was given.

    Raises:
        RecordError: It is not a message of this kind.
    """
    given = kind_of(config)
    if given != kind:
        raise RecordError(f"a message must be of the kind {kind}, got {given[:40]!r}")
    content = config.get("content")
    try:
        values = json.loads(content) if isinstance(content, str) else None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"what the message {kind} says cannot be read") from error
    if not isinstance(values, dict):
        raise RecordError(f"what the message {kind} says cannot be read")
    return values


def shape_to(*, num_classes: int, image_shape: tuple[int, int, int]) -> dict[str, Scalar]:
    """The question who a client is, whose teacher must be of this kind."""
    return config_of("introduce", num_classes=num_classes, image_shape=list(image_shape))


def read_shape(config: Mapping[str, Scalar]) -> tuple[int, tuple[int, int, int]]:
    """Inverse of `shape_to`.

    Raises:
        RecordError: It is none.
    """
    values = message_of(config, kind="introduce")
    _require_names(values, {"num_classes", "image_shape"})
    return _whole("num_classes", values["num_classes"], least=2), _shape(values["image_shape"])


def read_introduction(values: Mapping[str, Any]) -> Introduction:
    """What a client says of itself, checked.

    Raises:
        RecordError: It is not what one says.
    """
    _require_names(values, {field.name for field in dataclasses.fields(Introduction)})
    records, training = values["num_records"], values["training"]
    if not isinstance(values["name"], str) or not _NAME.fullmatch(values["name"]):
        raise RecordError("name must be letters, digits, spaces, dots and dashes, 100 at most")
    if records is not None:
        _whole("num_records", records, least=1)
    if not isinstance(training, str) or len(training) > 200 or not isinstance(values["secure"], bool):
        raise RecordError("training must be a text and secure true or false")
    assumptions = values["assumptions"]
    if (
        not isinstance(assumptions, list)
        or len(assumptions) > 20
        or not all(isinstance(text, str) and 0 < len(text) <= _SENTENCE and text.isprintable() for text in assumptions)
    ):
        # They are printed in the server's guarantee: nothing that could pass for another line of it.
        raise RecordError(f"assumptions must be 20 lines of text at most, each of 1 to {_SENTENCE:,} characters")
    stated = values["partition"]
    if stated is not None and (
        not isinstance(stated, dict)
        or set(stated) != {"data", "place", "settings", "share"}
        or not isinstance(stated["data"], str)
        or not isinstance(stated["settings"], dict)
        or not (stated["share"] is None or (isinstance(stated["share"], list) and len(stated["share"]) == 2))
        or len(json.dumps(stated)) > _SENTENCE
    ):
        raise RecordError(f"partition must be what a teacher's file says, of {_SENTENCE:,} characters at most")
    return _built(lambda: Introduction.from_dict(values), "releases")


def read_terms(values: Mapping[str, Any]) -> Terms:
    """What a run is going to ask, checked.

    Which settings of its annotator a server may decide on is the client's to say, see `FederatedClient`.

    Raises:
        RecordError: It is not what a server says.
    """
    _require_names(values, {field.name for field in dataclasses.fields(Terms)})
    if not isinstance(values["run"], str) or not _RUN.fullmatch(values["run"]):
        raise RecordError("run must be 32 hexadecimal digits")
    for name, allowed in (
        ("switch", ("data", "label")),
        ("noise_by", ("client", "server")),
        ("unit", ("record", "client")),
    ):
        if values[name] not in allowed:
            raise RecordError(f"{name} must be {' or '.join(allowed)}, got {str(values[name])[:40]!r}")
    if values["calls"] is not None:
        _whole("calls", values["calls"], least=0)
    _whole("batch_size", values["batch_size"], least=1)
    _whole("num_classes", values["num_classes"], least=2)
    _shape(values["image_shape"])
    mu = values["server_mu"]
    if mu is not None and (isinstance(mu, bool) or not isinstance(mu, int | float) or not mu >= 0):
        raise RecordError(f"server_mu must be 0 or more or null, got {str(mu)[:40]}")
    if not isinstance(values["mechanism"], dict) or not isinstance(values["loss"], dict):
        raise RecordError("mechanism and loss must be settings by name")
    unknown = set(values["loss"]) - {field.name for field in dataclasses.fields(GradientTargets)}
    if unknown:
        raise RecordError(f"loss has settings that there are none of: {', '.join(sorted(unknown))[:100]}")
    return _built(lambda: Terms.from_dict(values), "terms")


def question_to(question: Question) -> tuple[list[bytes], dict[str, Scalar]]:
    """One round's question: images, outputs and, of labels, candidates; and its number."""
    tensors = [question.images, question.outputs]
    if question.candidates is not None:
        tensors.append(question.candidates)
    return [array_of(tensor) for tensor in tensors], config_of("ask", number=question.number, size=question.size)


def question_from(arrays: Sequence[bytes], config: Mapping[str, Scalar]) -> Question:
    """Inverse of `question_to`. Shapes are for the client to check: it knows what was agreed.

    Raises:
        RecordError: It is no question.
    """
    values = message_of(config, kind="ask")
    _require_names(values, {"number", "size"})
    _whole("number", values["number"], least=0)
    if values["size"] is not None:
        _whole("size", values["size"], least=1)
    tensors = [tensor_of(data) for data in arrays]
    if [tensor.dtype for tensor in tensors[:2]] != [torch.float32] * 2 or len(tensors) > 3:
        raise RecordError(
            "a question must hold images and outputs, float32, and candidates where classes are asked for"
        )
    if len(tensors) == 3 and tensors[2].dtype != torch.bool:
        raise RecordError(f"candidates must be bool, got {tensors[2].dtype}")
    return Question(
        number=values["number"],
        images=tensors[0],
        outputs=tensors[1],
        candidates=tensors[2] if len(tensors) == 3 else None,
        size=values["size"],
    )


def _require_names(values: Mapping[str, Any], wanted: set[str]) -> None:
    if set(values) != wanted:
        odd = ", ".join(sorted(set(values) ^ wanted))[:100]
        raise RecordError(f"a message must hold {', '.join(sorted(wanted))}: missing or unknown are {odd}")


def _whole(name: str, given: Any, *, least: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise RecordError(f"{name} must be a whole number of at least {least}, got {str(given)[:40]}")
    return given


def _shape(given: Any) -> tuple[int, int, int]:
    if not isinstance(given, list) or len(given) != 3:
        raise RecordError(f"image_shape must be three whole numbers, got {str(given)[:40]}")
    channels, height, width = (_whole("image_shape", length, least=1) for length in given)
    return channels, height, width


def _built(build: Callable[[], _T], name: str) -> _T:
    try:
        return build()
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise RecordError(f"{name} cannot be read") from error
