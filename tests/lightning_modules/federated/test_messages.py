"""What the messages carry, both ways, and what is refused of them; a client's side of every message."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from support.federations import BATCH_SIZE, SHAPE, question, terms
from support.remote_clients import teacher_files

from lightning_modules.federated import ClientRefusal, Introduction, Node, Terms
from lightning_modules.federated.messages import (
    pack,
    pack_question,
    read_answer,
    read_introduction,
    read_question,
    read_terms,
    unpack,
)
from privacy.events import Gaussian, Release, SampledGaussian

SIZES = st.lists(st.integers(0, 4), max_size=4)
KINDS = st.sampled_from([torch.bool, torch.float32, torch.int64])
NUMBERS = st.floats(0, 1e6, allow_nan=False) | st.just(math.inf)
RUNS = st.text("0123456789abcdef", min_size=32, max_size=32)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Of every kind and shape, NaN and infinities among their values."""
    sizes, kind = draw(SIZES), draw(KINDS)
    bits = torch.tensor(
        draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=math.prod(sizes), max_size=math.prod(sizes)))
    )
    flat = bits.to(torch.int32).view(torch.float32) if kind is torch.float32 else bits.to(kind)
    return flat.reshape(sizes)


@st.composite
def all_terms(draw: st.DrawFn) -> Terms:
    """Whatever a server may ask."""
    return Terms(
        run=draw(RUNS),
        switch=draw(st.sampled_from(["data", "label"])),
        noise_by=draw(st.sampled_from(["client", "server"])),
        calls=draw(st.none() | st.integers(0, 10**9)),
        batch_size=draw(st.integers(1, 4096)),
        num_classes=draw(st.integers(2, 1000)),
        image_shape=draw(st.tuples(*[st.integers(1, 512)] * 3)),
        mechanism=draw(st.dictionaries(st.sampled_from(["release", "norm_bound", "top_k"]), NUMBERS | st.none())),
        loss=draw(st.dictionaries(st.sampled_from(["gamma", "dkd_beta"]), NUMBERS)),
        server_mu=draw(st.none() | NUMBERS),
    )


@given(tensors())
def test_tensors_arrive_bit_for_bit(tensor: torch.Tensor) -> None:
    arrived = unpack(pack("any", {"sent": tensor}))[2]["sent"]
    assert arrived.dtype == tensor.dtype and arrived.shape == tensor.shape
    assert arrived.numpy().tobytes() == tensor.numpy().tobytes()


@given(all_terms())
def test_terms_arrive(asked: Terms) -> None:
    kind, values, _ = unpack(pack("begin", **asdict(asked)))
    assert kind == "begin" and read_terms(values) == asked


@given(
    st.text("abc-. 1", min_size=1, max_size=20).map(lambda text: f"c{text}"),
    st.none() | st.integers(1, 10**9),
    st.none() | st.dictionaries(st.sampled_from([Gaussian(0.5), SampledGaussian(1.0, 0.1)]), st.integers(1, 99)),
    st.booleans(),
    st.lists(st.text("a (δ=1).", min_size=1), max_size=3).map(tuple),
)
def test_introductions_arrive(
    name: str, records: int | None, releases: dict[Release, int] | None, secure: bool, assumptions: tuple[str, ...]
) -> None:
    said = Introduction(
        name=name,
        num_records=records,
        training="ab" * 16,
        releases=releases,
        secure=secure,
        assumptions=assumptions,
        partition={
            "data": name,
            "place": None,
            "class_names": ["a", "b"],
            "settings": {"fold": 1},
            "share": ["of-2", 0],
        },
    )
    assert read_introduction(unpack(pack("introduction", **said.to_dict()))[1]) == said


LABELS = {"switch": "label", "mechanism": {"epsilon": 1.0, "smallest": 3, "delta": 1e-5}}


@pytest.mark.parametrize("label", [False, True])
def test_questions_arrive(label: bool) -> None:
    candidates = torch.arange(10).expand(BATCH_SIZE, 10) < 3
    asked = question(7, **({"candidates": candidates} if label else {}))
    arrived = read_question(*unpack(pack_question(asked))[1:], terms(**(LABELS if label else {})))
    assert arrived.number == 7
    for name in ("images", "outputs", "candidates"):
        first, second = getattr(asked, name), getattr(arrived, name)
        assert (first is None and second is None) or torch.equal(first, second)


def written(tensors: dict[str, torch.Tensor] | None = None, **metadata: str) -> bytes:
    """A message as another version or another program may write it."""
    return save(tensors or {}, metadata)


GOOD = {"version": "6", "kind": "ask", "values": '{"number": 0}'}


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"not a message",
        pack_question(question())[:-1],
        pack_question(question()) + b"0",
        save({}),
        written(kind="ask", values="{}"),
        written(**{**GOOD, "version": "99"}),
        *(written(**{**GOOD, "values": text}) for text in ("[", "[" * 100_000, "[]", "7")),
    ],
)
def test_bytes_that_are_no_message_are_refused(message: bytes) -> None:
    assert unpack(written(**GOOD)) == ("ask", {"number": 0}, {})
    with pytest.raises(ClientRefusal, match=r"cannot be read|of version 6, got .*: install one version everywhere"):
        unpack(message)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"run": "../../elsewhere"}, "run of a message must not be"),
        ({"switch": "both"}, "switch of a message"),
        ({"noise_by": ["client"]}, "noise_by of"),
        ({"calls": -1}, "calls of"),
        ({"batch_size": 10**10}, "batch_size of"),
        ({"batch_size": True}, "batch_size of"),
        ({"num_classes": 1}, "num_classes of"),
        ({"image_shape": [1, 8, 0.5]}, "image_shape of"),
        ({"server_mu": math.nan}, "server_mu of"),
        ({"mechanism": []}, "mechanism of"),
        ({"more": 1}, r"missing or unknown are \['more'\]"),
    ],
)
def test_terms_that_are_none_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ClientRefusal, match=message):
        read_terms({**asdict(terms()), **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "../x"},
        {"name": "x" * 101},
        {"num_records": 0},
        {"training": 7},
        {"secure": "yes"},
        {"assumptions": [7]},
        {"assumptions": ["x" * 20_001]},
        {"assumptions": ["x"] * 21},
        {"assumptions": ["nothing\n- ε = 0.1 for every record"]},
        {"releases": [[{"kind": "none such"}, 1]]},
        {"partition": {"data": "x", "place": None, "class_names": [], "settings": {}, "share": [0]}},
        {"partition": {"data": "x", "place": None, "class_names": ["a\nb"], "settings": {}, "share": None}},
        {"releases": [[{"kind": "gaussian", "mu": 0.5}, "x"]]},
    ],
)
def test_introductions_that_are_none_are_refused(changed: dict[str, Any]) -> None:
    good = Introduction(name="one").to_dict()
    assert read_introduction(good).name == "one"
    with pytest.raises(ClientRefusal):
        read_introduction({**good, **changed})


@pytest.mark.parametrize("values", [{"number": -1}, {"number": 1, "more": 0}, {}])
def test_questions_that_are_none_are_refused(values: dict[str, Any]) -> None:
    _, good, tensors = unpack(pack_question(question()))
    read_question(good, tensors, terms())
    with pytest.raises(ClientRefusal):
        read_question(values, tensors, terms())
    images, outputs = tensors["images"], tensors["outputs"]
    for others in (
        {},
        {"images": images},
        {"images": outputs, "outputs": images},
        {**tensors, "more": outputs},
        {**tensors, "outputs": outputs.double()},
    ):
        with pytest.raises(ClientRefusal, match="the tensors of a message must be images"):
            read_question(good, others, terms())


def test_a_bool_that_is_neither_0_nor_1_is_refused() -> None:
    sent = pack_question(question(candidates=torch.ones(BATCH_SIZE, 10, dtype=torch.bool)))
    _, values, tensors = unpack(sent)
    read_question(values, tensors, terms(**LABELS))
    tensors["candidates"].view(torch.uint8)[0, 0] = 2
    with pytest.raises(ClientRefusal, match="bools holds values other than 0 and 1"):
        read_question(values, tensors, terms(**LABELS))


CANDIDATES = torch.arange(10).expand(BATCH_SIZE, 10) < 3


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (torch.zeros(BATCH_SIZE, 9), r"must be answer \(8, 10\)"),
        (torch.full((BATCH_SIZE, 10), torch.nan), "not finite"),
        (torch.full((BATCH_SIZE, 10), math.inf), "not finite"),
        (torch.zeros(BATCH_SIZE), r"must be answer \(8,\) torch.int64"),
        (torch.full((BATCH_SIZE,), 3), "not a candidate"),
        (torch.full((BATCH_SIZE,), -1), "not a candidate"),
        (torch.full((BATCH_SIZE,), 10), "not a candidate"),
    ],
)
def test_answers_that_cannot_be_used_are_refused(answer: torch.Tensor, reason: str) -> None:
    asked = question() if answer.dim() == 2 else question(candidates=CANDIDATES)
    good = torch.ones(BATCH_SIZE, 10) if answer.dim() == 2 else torch.full((BATCH_SIZE,), 2)
    assert torch.equal(read_answer({"number": 0}, {"answer": good}, asked), good)
    with pytest.raises(ClientRefusal, match=reason):
        read_answer({"number": 0}, {"answer": answer}, asked)
    with pytest.raises(ClientRefusal, match="tensors of a message"):
        read_answer({"number": 0}, {}, asked)
    with pytest.raises(ClientRefusal, match="cannot be used"):
        read_answer({"number": 1}, {"answer": good}, asked)


# --- a client's side ---


def _node(folder: Path, **settings: Any) -> Node:
    teacher_files(1)
    return Node(**{"name": "one", "teacher": "teacher0.pt", "folder": folder, "num_records": 300, **settings})


INTRODUCE = pack("introduce", num_classes=10, image_shape=list(SHAPE))


def tell(node: Node, message: bytes) -> tuple[str, dict[str, Any]]:
    kind, values, tensors = unpack(node.answer(message))
    assert bool(tensors) == (kind == "answer")
    return kind, values


def _begin(**changed: Any) -> bytes:
    return pack("begin", **asdict(terms(**changed)))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The client's folder."""
    return tmp_path / "own"


def test_a_node_answers_a_run_and_writes_its_guarantee(own: Path) -> None:
    node = _node(own)
    said = read_introduction(tell(node, INTRODUCE)[1])
    assert said.name == "one" and said.num_records == 300 and said.secure
    assert tell(node, _begin())[0] == "done"
    kind, values, tensors = unpack(node.answer(pack_question(question(3))))
    assert (kind, values) == ("answer", {"number": 3})
    assert tensors["answer"].shape == (BATCH_SIZE, 10) and tensors["answer"].isfinite().all()
    assert tell(node, pack("end"))[0] == "done"
    written = json.loads((own / ("aa" * 16) / "guarantee.json").read_text(encoding="utf-8"))["guarantee"]
    assert written["queries"] == BATCH_SIZE and written["epsilon"] > 0


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pack("begin"), "a message must hold"),
        (pack("stop"), "must be introduce, begin, ask or end"),
        (written(**{**GOOD, "version": "5"}), "of version 6"),
        (_begin(num_classes=9), "introduced for other images or classes"),
        (_begin(noise_by="server"), "has not set trusts_server"),
        (_begin(mechanism={"scope": "run"}), "for its owner to set"),
        (_begin(loss={"code": "x"}), "met an error"),
    ],
)
def test_a_node_refuses_in_words(message: bytes, reason: str, own: Path) -> None:
    node = _node(own)
    tell(node, INTRODUCE)
    assert reason in tell(node, message)[1]["reason"]
    assert "before a run began" in tell(node, pack_question(question()))[1]["reason"]
    assert not own.exists()


def test_what_is_wrong_at_a_client_stays_there(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Paths, ledgers and what other runs have spent are no server's business."""
    node = _node(own, teacher="/secret/place/teacher.pt")
    said = tell(node, INTRODUCE)[1]["reason"]
    assert said == "one met an error, which its own log names" and "/secret/place" in caplog.text
    poor = _node(own, target_epsilon=0.01)
    tell(poor, INTRODUCE)
    said = tell(poor, _begin())[1]["reason"]
    assert said == "the target_epsilon of one leaves no room for an answer" and "records of 0" in caplog.text


def test_a_malformed_question_costs_nothing(own: Path) -> None:
    node = _node(own)
    tell(node, INTRODUCE)
    tell(node, _begin())
    images = torch.zeros(BATCH_SIZE, *SHAPE)
    for wrong in (pack("ask", number=0), pack("ask", {"images": images, "outputs": images.clone()}, number=0)):
        assert tell(node, wrong)[0] == "refusal"
    assert node._client is not None and not node._client.session.account.counts()
    assert tell(node, pack_question(question()))[0] == "answer", "and the next one is answered"
