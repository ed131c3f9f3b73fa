"""Messages between server and clients (DPSD Algorithm 2), sent as JSON values and tensors in the format of safetensors.

Everything that the server sends is public or was released before. Only its answers leave a client. Nothing is pickled,
and messages from other machines are checked here and refused if malformed.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

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

_VERSION = "6"


def pack(kind: str, tensors: Mapping[str, torch.Tensor] | None = None, **values: Any) -> bytes:
    """Make a message of plain values and of bool, float32 or int64 tensors, in the format of safetensors."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in (tensors or {}).items()}
    return save(plain, {"version": _VERSION, "kind": kind, "values": json.dumps(values)})


def unpack(message: bytes) -> tuple[str, dict[str, Any], dict[str, torch.Tensor]]:
    """Return the kind, values and tensors of a message.

    Raises:
        ClientRefusal: It has another version, or cannot be read.
    """
    try:
        tensors = load(message)
        said = json.loads(message[8 : 8 + int.from_bytes(message[:8], "little")])["__metadata__"]
        version, kind, values = said["version"], said["kind"], json.loads(said["values"])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ClientRefusal("a message cannot be read") from error
    if version != _VERSION or not isinstance(values, dict):
        raise ClientRefusal(f"a message must be of version {_VERSION}, got {version!r}: install one version everywhere")
    return kind, values, tensors


def _require(tensors: Mapping[str, torch.Tensor], **wanted: tuple[tuple[int, ...], torch.dtype]) -> None:
    """Refuse tensors of other names, shapes or types, and bools that are neither 0 nor 1."""
    found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    if found != wanted:
        raise ClientRefusal(f"the tensors of a message must be {_told(wanted)}, got {_told(found)}")
    if any(bool((one.view(torch.uint8) > 1).any()) for one in tensors.values() if one.dtype == torch.bool):
        raise ClientRefusal("a tensor of bools holds values other than 0 and 1")


def _told(tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> str:
    return ", ".join(f"{name[:20]} {shape} {dtype}" for name, (shape, dtype) in list(tensors.items())[:3]) or "none"


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


def pack_question(question: Question) -> bytes:
    """Make a message of a question: its images, outputs and, for labels, candidates."""
    tensors = {name: getattr(question, name) for name in ("images", "outputs", "candidates")}
    return pack("ask", {name: one for name, one in tensors.items() if one is not None}, number=question.number)


def read_question(values: Mapping[str, Any], tensors: Mapping[str, Any], terms: Terms) -> Question:
    """Inverse of `pack_question`, for a client that has agreed to these terms.

    Raises:
        ClientRefusal: The question does not fit the terms.
    """
    outputs = (terms.batch_size, terms.num_classes)
    candidates = {"candidates": (outputs, torch.bool)} if terms.switch == "label" else {}
    _require(
        tensors,
        images=((terms.batch_size, *terms.image_shape), torch.float32),
        outputs=(outputs, torch.float32),
        **candidates,
    )
    return Question(**read(values, ["number"]), **tensors)


def read_answer(values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], question: Question) -> torch.Tensor:
    """Parse a client's answer: gradients (B, c), or classes (B,) for labels.

    A value that is not finite reveals something about a client's machine, not its records: non-finite outputs of a
    teacher become zeros, or class 0, before they leave the client.

    Raises:
        ClientRefusal: It is not a valid answer to this question.
    """
    if values.get("number") != question.number:
        raise ClientRefusal(f"an answer to question {str(values.get('number'))[:20]} cannot be used")
    if question.candidates is None:
        _require(tensors, answer=(tuple(question.outputs.shape), torch.float32))
        if not bool(tensors["answer"].isfinite().all()):
            raise ClientRefusal("a gradient is not finite")
        return tensors["answer"]
    _require(tensors, answer=(tuple(question.outputs.shape[:1]), torch.int64))
    chosen = tensors["answer"].clamp(0, question.outputs.shape[1] - 1)
    candidate = question.candidates.cpu().gather(1, chosen[:, None])[:, 0]
    if not bool((candidate & (chosen == tensors["answer"])).all()):
        raise ClientRefusal("a class is not a candidate")
    return chosen
