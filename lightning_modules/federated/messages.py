"""Messages between server and clients (DPSD Algorithm 2), sent as JSON values and raw array bytes.

Everything that the server sends is public or was released before. Only its answers leave a client. Nothing is pickled,
and messages from other machines are checked here and refused if malformed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from datamodules.records import Partition
from privacy.events import Release, release_from_dict


class ClientRefusal(ValueError):
    """A client does not agree to a run's terms, or a message does not fit them."""


@dataclass(frozen=True, kw_only=True)
class Introduction:
    """A client's description of itself before the first query, which it makes public.

    Attributes:
        name: Its name in messages, logs and guarantees.
        num_records: Number of its records, if it states one.
        training: Identity of its teacher's training; empty if the teacher's file has none.
        releases: Releases of that training, if it was by DP-SGD; None if nothing bounds it.
        secure: Whether its noise comes from the operating system's generator.
        assumptions: Assumptions of any guarantee about its teacher's outputs, one sentence each.
        partition: Identifies its records and their data set (name, classes, settings), if its teacher's file does.
    """

    name: str
    num_records: int | None = None
    training: str = ""
    releases: Mapping[Release, int] | None = None
    secure: bool = True
    assumptions: tuple[str, ...] = ()
    partition: Partition | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values; `read_introduction` is the inverse."""
        releases = None if self.releases is None else [[r.to_dict(), n] for r, n in self.releases.items()]
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "releases": releases, "assumptions": list(self.assumptions)}


@dataclass(frozen=True, kw_only=True)
class Terms:
    """A run's queries to its clients: fixed before the first one, and the same for all clients.

    Attributes:
        run: Identity of the server's run, by which clients' ledgers count.
        switch: What clients answer: gradients (`data`) or classes (`label`).
        noise_by: Who adds the noise: each client to its answers, or a trusted server to their sum. For labels it is
            always the clients.
        calls: Number of questions that the run plans; None if it has no planned end.
        batch_size: B, the number of images in a question.
        num_classes: c.
        image_shape: (C, H, W).
        mechanism: Settings of the client's mechanism and its delta, see `FederatedClient`.
        loss: Settings of the `GradientTargets` whose gradient is queried; empty for labels.
        server_mu: μ of each of the `calls` releases if the server adds the noise (their root mean square if its noise
            was changed), from which a client states its guarantee against everyone but the server. None if clients
            add the noise.
    """

    run: str
    switch: Literal["data", "label"]
    noise_by: Literal["client", "server"]
    calls: int | None
    batch_size: int
    num_classes: int
    image_shape: tuple[int, int, int]
    mechanism: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[str, Any] = field(default_factory=dict)
    server_mu: float | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """One round's question (Algorithm 2, line 6): synthetic images and the student's outputs for them.

    Attributes:
        number: Number of the round, from 0.
        images: Shape (B, C, H, W), float32.
        outputs: The student's logits, shape (B, c), float32.
        candidates: For labels, the classes to choose from, shape (B, c), bool, determined by the student's outputs
            alone; None for gradients.
        features: The images' features, if all teachers in this process share a fixed feature extractor; never sent.
    """

    number: int
    images: torch.Tensor
    outputs: torch.Tensor
    candidates: torch.Tensor | None = None
    features: torch.Tensor | None = None


@dataclass(frozen=True)
class Absence:
    """Why a client's answer is left out of a round.

    Attributes:
        reason: An explanation that reveals nothing about the client's records.
    """

    reason: str


# --- on the wire ---

Scalar = bool | bytes | float | int | str
"""Type of an entry of a Flower configuration."""

_VERSION = 5
_TYPES = {torch.bool: "|b1", torch.float32: "<f4", torch.int64: "<i8"}


def pack(kind: str, **values: Any) -> dict[str, Scalar]:
    """Make a message from plain values."""
    return {"version": _VERSION, "kind": kind, "content": json.dumps(values)}


def unpack(config: Mapping[str, Scalar]) -> tuple[str, dict[str, Any]]:
    """Return the kind and values of a message.

    Raises:
        ClientRefusal: It has another version, or cannot be read.
    """
    version, kind, content = (config.get(name) for name in ("version", "kind", "content"))
    if version != _VERSION or not isinstance(kind, str):
        raise ClientRefusal(f"a message must be of version {_VERSION}, got {version!r}: install one version everywhere")
    try:
        values = json.loads(content) if isinstance(content, str) else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ClientRefusal(f"the content of a message {kind[:40]!r} cannot be read")
    return kind, values


def to_bytes(tensor: torch.Tensor) -> bytes:
    """Return the values of a bool, float32 or int64 tensor in C order; the receiver knows shape and type."""
    return tensor.detach().cpu().numpy().astype(_TYPES[tensor.dtype], copy=False).tobytes()


def from_bytes(data: bytes, *, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Inverse of `to_bytes`.

    Raises:
        ClientRefusal: The number of bytes does not fit the shape, or a bool is neither 0 nor 1.
    """
    expected = math.prod(shape) * np.dtype(_TYPES[dtype]).itemsize
    if not isinstance(data, bytes) or len(data) != expected:
        raise ClientRefusal(f"an array of shape {tuple(shape)} takes {expected:,} bytes, got {len(data):,}")
    if dtype == torch.bool and any(data.translate(None, b"\x00\x01")):
        raise ClientRefusal("an array of bools holds values other than 0 and 1")
    return torch.from_numpy(np.frombuffer(data, dtype=_TYPES[dtype]).reshape(shape).copy())


Rule = Callable[[Any], bool]
_MOST = 10**9


def _whole(least: int) -> Rule:
    return lambda given: isinstance(given, int) and not isinstance(given, bool) and least <= given <= _MOST


def _text(pattern: str) -> Rule:
    return lambda given: isinstance(given, str) and re.fullmatch(pattern, given) is not None


def _of(*kinds: type) -> Rule:
    return lambda given: isinstance(given, kinds)


def _or_null(rule: Rule) -> Rule:
    return lambda given: given is None or rule(given)


def _shape(given: Any) -> bool:
    return isinstance(given, list | tuple) and len(given) == 3 and all(_whole(1)(length) for length in given)


def _sentences(given: Any) -> bool:
    # They are printed in the server's guarantee, so none may look like another line of it. 20,000 characters fit the
    # frequencies of a thousand classes.
    short = isinstance(given, list) and len(given) <= 20
    return short and all(isinstance(one, str) and 0 < len(one) <= 20_000 and one.isprintable() for one in given)


def _partition(given: Any) -> bool:
    if not isinstance(given, dict) or set(given) != {"data", "place", "class_names", "settings", "share"}:
        return False
    share = given["share"]
    names = given["class_names"]
    known = isinstance(given["data"], str) and isinstance(given["settings"], dict)
    known = known and isinstance(names, list) and all(isinstance(name, str) and name.isprintable() for name in names)
    return known and (share is None or (isinstance(share, list) and len(share) == 2))


_INTRODUCTION: dict[str, Rule] = {
    "name": _text(r"[\w][\w .-]{0,99}"),
    "num_records": _or_null(_whole(1)),
    "training": _text(r"[^\n]{0,200}"),
    "releases": _or_null(_of(list)),
    "secure": _of(bool),
    "assumptions": _sentences,
    "partition": _or_null(_partition),
}
_TERMS: dict[str, Rule] = {
    "run": _text("[0-9a-f]{32}"),
    "switch": _text("data|label"),
    "noise_by": _text("client|server"),
    "calls": _or_null(_whole(0)),
    "batch_size": _whole(1),
    "num_classes": _whole(2),
    "image_shape": _shape,
    "mechanism": _of(dict),
    "loss": _of(dict),
    "server_mu": _or_null(lambda given: isinstance(given, int | float) and given >= 0),
}
_RULES = {**_INTRODUCTION, **_TERMS, "number": _whole(0)}


def read(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a message's values after checking each against its rule.

    Raises:
        ClientRefusal: A value is missing, unknown or not allowed.
    """
    if odd := set(values) ^ set(names):
        raise ClientRefusal(f"a message must hold {', '.join(names)}: missing or unknown are {sorted(odd)}"[:400])
    for name in names:
        if not _RULES[name](values[name]):
            raise ClientRefusal(f"{name} of a message must not be {str(values[name])[:40]!r}")
    return dict(values)


def read_introduction(values: Mapping[str, Any]) -> Introduction:
    """Parse a client's introduction; raises `ClientRefusal` if it is malformed."""
    known = read(values, list(_INTRODUCTION))
    try:
        if known["releases"] is not None:
            known["releases"] = {release_from_dict(release): int(count) for release, count in known["releases"]}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ClientRefusal("the releases of a message cannot be read") from error
    return Introduction(**{**known, "assumptions": tuple(known["assumptions"])})


def read_terms(values: Mapping[str, Any]) -> Terms:
    """Parse the terms of a run; raises `ClientRefusal` if malformed. `FederatedClient` checks the settings in them."""
    known = read(values, list(_TERMS))
    return Terms(**{**known, "image_shape": tuple(known["image_shape"])})


def pack_question(question: Question) -> tuple[list[bytes], dict[str, Scalar]]:
    """Convert a question to array bytes (images, outputs and, for labels, candidates) and a message with its number."""
    tensors = [question.images, question.outputs, *([] if question.candidates is None else [question.candidates])]
    return [to_bytes(tensor) for tensor in tensors], pack("ask", number=question.number)


def read_question(arrays: Sequence[bytes], values: Mapping[str, Any], terms: Terms) -> Question:
    """Inverse of `pack_question`, for a client that has agreed to these terms.

    Raises:
        ClientRefusal: The question does not fit the terms.
    """
    outputs = (terms.batch_size, terms.num_classes)
    wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "images": ((terms.batch_size, *terms.image_shape), torch.float32),
        "outputs": (outputs, torch.float32),
        **({"candidates": (outputs, torch.bool)} if terms.switch == "label" else {}),
    }
    if len(arrays) != len(wanted):
        raise ClientRefusal(f"a question must hold {', '.join(wanted)}, got {len(arrays)} arrays")
    tensors: dict[str, Any] = {
        name: from_bytes(data, shape=shape, dtype=dtype)
        for data, (name, (shape, dtype)) in zip(arrays, wanted.items(), strict=True)
    }
    return Question(**read(values, ["number"]), **tensors)


def read_answer(arrays: Sequence[bytes], values: Mapping[str, Any], question: Question) -> torch.Tensor:
    """Parse a client's answer: gradients (B, c), or classes (B,) for labels.

    A value that is not finite reveals something about a client's machine, not its records: non-finite outputs of a
    teacher become zeros, or class 0, before they leave the client.

    Raises:
        ClientRefusal: It is not a valid answer to this question.
    """
    if values.get("number") != question.number or len(arrays) != 1:
        raise ClientRefusal(f"{len(arrays)} arrays, of question {str(values.get('number'))[:20]}: it cannot be used")
    if question.candidates is None:
        gradients = from_bytes(arrays[0], shape=question.outputs.shape, dtype=torch.float32)
        if not bool(gradients.isfinite().all()):
            raise ClientRefusal("a gradient is not finite")
        return gradients
    classes = from_bytes(arrays[0], shape=question.outputs.shape[:1], dtype=torch.int64)
    chosen = classes.clamp(0, question.outputs.shape[1] - 1)
    candidate = question.candidates.cpu().gather(1, chosen[:, None])[:, 0]
    if not bool((candidate & (chosen == classes)).all()):
        raise ClientRefusal("a class is not a candidate")
    return classes
