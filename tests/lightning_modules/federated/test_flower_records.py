"""What Flower carries, both ways, and what is refused of it; a client's side of every message. No package is needed."""

from __future__ import annotations

import contextlib
import io
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.federations import BATCH_SIZE, SHAPE, question, small_network, terms
from support.flower import teacher_files

from lightning_modules.federated import Introduction, Question, Terms
from lightning_modules.federated.flower import Node
from lightning_modules.federated.flower.records import (
    RecordError,
    array_of,
    config_of,
    kind_of,
    message_of,
    question_from,
    question_to,
    read_introduction,
    read_shape,
    read_terms,
    shape_to,
    tensor_of,
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
        unit=draw(st.sampled_from(["record", "client"])),
        calls=draw(st.none() | st.integers(0, 10**9)),
        batch_size=draw(st.integers(1, 4096)),
        num_classes=draw(st.integers(2, 1000)),
        image_shape=draw(st.tuples(*[st.integers(1, 512)] * 3)),
        mechanism=draw(st.dictionaries(st.sampled_from(["release", "norm_bound", "top_k"]), NUMBERS | st.none())),
        loss=draw(st.dictionaries(st.sampled_from(["gamma", "temperature"]), NUMBERS)),
        server_mu=draw(st.none() | NUMBERS),
    )


@given(tensors())
def test_tensors_arrive_bit_for_bit(tensor: torch.Tensor) -> None:
    arrived = tensor_of(array_of(tensor))
    assert arrived.dtype == tensor.dtype and arrived.shape == tensor.shape
    assert arrived.numpy().tobytes() == tensor.numpy().tobytes()


@given(all_terms())
def test_terms_arrive(asked: Terms) -> None:
    config = config_of("begin", **asked.to_dict())
    assert read_terms(message_of(config, kind="begin")) == asked


@given(
    st.text("abc-. 1", min_size=1, max_size=20).map(lambda text: f"c{text}"),
    st.none() | st.integers(1, 10**9),
    st.none() | st.dictionaries(st.sampled_from([Gaussian(0.5), SampledGaussian(1.0, 0.1)]), st.integers(1, 99)),
    st.booleans(),
    st.lists(st.text("a (δ=1).", min_size=1), max_size=3).map(tuple),
)
def test_introductions_arrive(
    name: str,
    records: int | None,
    releases: dict[Release, int] | None,
    secure: bool,
    assumptions: tuple[str, ...],
) -> None:
    said = Introduction(
        name=name,
        num_records=records,
        training="ab" * 16,
        releases=releases,
        secure=secure,
        assumptions=assumptions,
        partition={"data": name, "place": None, "settings": {"fold": 1}, "share": ["of-2", 0]},
    )
    assert read_introduction(message_of(config_of("introduction", **said.to_dict()), kind="introduction")) == said


@given(tensors(), tensors(), st.none() | tensors(), st.integers(0, 10**9), st.none() | st.integers(1, 99))
def test_questions_arrive(
    images: torch.Tensor, outputs: torch.Tensor, candidates: torch.Tensor | None, number: int, size: int | None
) -> None:
    asked = Question(
        number=number,
        images=images.nan_to_num().float(),
        outputs=outputs.nan_to_num().float(),
        candidates=None if candidates is None else candidates.nan_to_num() > 0,
        size=size,
    )
    arrived = question_from(*question_to(asked))
    assert (arrived.number, arrived.size) == (number, size)
    for name in ("images", "outputs", "candidates"):
        first, second = getattr(asked, name), getattr(arrived, name)
        assert (first is None and second is None) or torch.equal(first, second)


def test_the_question_who_one_is_arrives() -> None:
    assert read_shape(shape_to(num_classes=10, image_shape=SHAPE)) == (10, SHAPE)


def _saved(array: Any, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **settings)
    return buffer.getvalue()


def _claiming(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + b"\x00" * 8


class Bomb:
    """Would make a file if it were unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("unpickled"),)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not in NumPy's format"),
        (b"not an array", "not in NumPy's format"),
        (pickle.dumps(Bomb()), "not in NumPy's format"),
        (_saved(np.array([Bomb()], dtype=object), allow_pickle=True), "bool, float32 or int64"),
        (_saved(np.zeros(2)), "bool, float32 or int64"),
        (_saved(np.zeros(2, dtype=">f4")), "bool, float32 or int64"),
        (_saved(np.zeros((2, 3), dtype=np.float32, order="F")), "in C order"),
        (_saved(np.zeros(2, dtype=[("a", "<f4")])), "bool, float32 or int64"),
        (_saved(np.zeros(3, dtype=np.float32))[:-1], "not as many as its shape takes"),
        (_saved(np.zeros(3, dtype=np.float32)) + b"1", "not as many as its shape takes"),
        (_saved(np.zeros(3, dtype=bool))[:-3] + b"\x00\x02\x01", "truth values"),
        (_claiming((10**15,)), "not as many as its shape takes"),
        (_claiming((-1, -2)), "not as many as its shape takes"),
    ],
)
def test_what_is_no_array_is_refused_before_it_is_built(
    data: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecordError, match=message):
        tensor_of(data)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="bool, float32 or int64"):
        array_of(torch.zeros(2, dtype=torch.float64))


@given(st.binary(max_size=200), st.integers(0, 150))
def test_damaged_arrays_are_arrays_or_refused(noise: bytes, at: int) -> None:
    whole = array_of(torch.arange(6).reshape(2, 3))
    for data in (noise, whole[:at] + noise, whole[:at] + noise + whole[at + len(noise) :]):
        with contextlib.suppress(RecordError):
            assert tensor_of(data).dtype in (torch.bool, torch.float32, torch.int64)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"run": "../../elsewhere"}, "run must be 32 hexadecimal digits"),
        ({"run": 3}, "run must be"),
        ({"switch": "both"}, "switch must be data or label"),
        ({"noise_by": ["client"]}, "noise_by must be"),
        ({"unit": None}, "unit must be"),
        ({"calls": -1}, "calls must be"),
        ({"batch_size": True}, "batch_size must be"),
        ({"num_classes": 1}, "num_classes must be"),
        ({"image_shape": [1, 8]}, "image_shape must be"),
        ({"image_shape": [1, 8, 0.5]}, "image_shape must be"),
        ({"server_mu": -1.0}, "server_mu must be"),
        ({"server_mu": math.nan}, "server_mu must be"),
        ({"mechanism": []}, "mechanism and loss must be"),
        ({"loss": {"code": "x"}}, "loss has settings that there are none of: code"),
        ({"more": 1}, "missing or unknown are more"),
    ],
)
def test_terms_that_are_none_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        read_terms({**terms().to_dict(), **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"name": ""},
        {"name": "../x"},
        {"name": "x" * 101},
        {"num_records": 0},
        {"num_records": 1.5},
        {"training": 7},
        {"secure": "yes"},
        {"assumptions": "one"},
        {"assumptions": [7]},
        {"assumptions": [""]},
        {"assumptions": ["x" * 20_001]},
        {"assumptions": ["x"] * 21},
        {"assumptions": ["nothing\n- ε = 0.1 for every record"]},
        {"releases": [[{"kind": "none such"}, 1]]},
        {"releases": 4},
        {"partition": {"data": "x", "place": None, "settings": {}, "share": [0]}},
        {"partition": {"data": "x", "place": None, "settings": {"x": "x" * 20_001}, "share": None}},
        {"releases": [[{"kind": "gaussian", "mu": 0.5}, "x"]]},
    ],
)
def test_introductions_that_are_none_are_refused(changed: dict[str, Any]) -> None:
    good = Introduction(name="one").to_dict()
    assert read_introduction(good).name == "one"
    with pytest.raises(RecordError):
        read_introduction({**good, **changed})


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"version": 99, "kind": "ask", "content": "{}"},
        {"version": 2, "kind": 4, "content": "{}"},
        {"version": 2, "kind": "begin", "content": "{}"},
        {"version": 2, "kind": "ask", "content": "["},
        {"version": 2, "kind": "ask", "content": "[" * 100_000},
        {"version": 2, "kind": "ask", "content": "[]"},
        {"version": 2, "kind": "ask", "content": b"{}"},
        {"version": 2, "kind": "ask"},
        {"version": 2, "kind": "ask", "content": '{"number": -1, "size": null}'},
        {"version": 2, "kind": "ask", "content": '{"number": 1, "size": 0}'},
        {"version": 2, "kind": "ask", "content": '{"number": 1}'},
    ],
)
def test_messages_that_are_none_are_refused(config: dict[str, Any]) -> None:
    arrays, good = question_to(question())
    question_from(arrays, good)
    with pytest.raises(RecordError):
        question_from(arrays, config)


def test_questions_of_other_tensors_are_refused() -> None:
    (images, outputs), config = question_to(question())
    whole, truth = array_of(torch.zeros(2).long()), array_of(torch.zeros(2).bool())
    for arrays in ([], [images], [images, whole], [images, outputs, whole], [images, outputs, truth, truth]):
        with pytest.raises(RecordError):
            question_from(arrays, config)


# --- a client's side ---


def _node(folder: Path, **settings: Any) -> Node:
    teacher_files(1)
    return Node(**{"name": "one", "teacher": "teacher0.pt", "folder": folder, "num_records": 300, **settings})


INTRODUCE = shape_to(num_classes=10, image_shape=SHAPE)


def _begin(**changed: Any) -> dict[str, Any]:
    return config_of("begin", **terms(**changed).to_dict())


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The client's folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "own"


def test_a_node_answers_a_run_and_writes_its_guarantee(own: Path) -> None:
    node = _node(own)
    said = read_introduction(message_of(node.tell(INTRODUCE), kind="introduction"))
    assert said.name == "one" and said.num_records == 300 and said.secure
    assert kind_of(node.tell(_begin())) == "done"
    (answer,), about = node.ask(*question_to(question(3)))
    assert tensor_of(answer).shape == (BATCH_SIZE, 10)
    assert message_of(about, kind="answer") == {"number": 3}
    assert kind_of(node.tell(config_of("end"))) == "done"
    written = json.loads((own / ("aa" * 16) / "guarantee.json").read_text(encoding="utf-8"))["guarantee"]
    assert written["queries"] == BATCH_SIZE and written["epsilon"] > 0


def test_each_message_may_be_answered_by_another_process(own: Path) -> None:
    """What was answered stands in the ledger by the server's run, and no answer is free or counted twice."""
    for number in range(4):
        node = _node(own)
        node.tell(INTRODUCE)
        assert kind_of(node.tell(_begin())) == "done"
        assert len(node.ask(*question_to(question(number)))[0]) == 1
        node.end()
    client = node._client
    assert client is not None and client.annotator.calls_made() == 4
    assert client.guarantee().queries == 4 * BATCH_SIZE


def test_a_second_run_has_a_folder_of_its_own_and_composes(own: Path) -> None:
    node = _node(own)
    node.tell(INTRODUCE)
    for run in ("aa" * 16, "bb" * 16):
        node.tell(_begin(run=run))
        node.ask(*question_to(question()))
    node.end()
    first, second = (
        json.loads((own / run / "guarantee.json").read_text(encoding="utf-8"))["guarantee"]["epsilon"]
        for run in ("aa" * 16, "bb" * 16)
    )
    assert second > first


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (config_of("begin"), "a message must hold"),
        (config_of("stop"), "must be introduce, begin or end"),
        ({"kind": "begin"}, "of version 2"),
        (_begin(num_classes=9), "introduced for other images or classes"),
        (_begin(noise_by="server"), "has not set trusts_server"),
        (_begin(mechanism={"scope": "run"}), "for its owner to set"),
    ],
)
def test_a_node_refuses_in_words(message: dict[str, Any], reason: str, own: Path) -> None:
    node = _node(own)
    node.tell(INTRODUCE)
    assert reason in message_of(node.tell(message), kind="refusal")["reason"]
    arrays, said = node.ask(*question_to(question()))
    assert not arrays and "before a run began" in message_of(said, kind="refusal")["reason"]
    assert not own.exists()


def test_what_is_wrong_at_a_client_stays_there(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Paths, ledgers and what other runs have spent are no server's business."""
    node = _node(own, teacher="/secret/place/teacher.pt")
    said = message_of(node.tell(INTRODUCE), kind="refusal")["reason"]
    assert said == "one met an error, which its own log names" and "/secret/place" in caplog.text
    poor = _node(own, target_epsilon=0.01)
    poor.tell(INTRODUCE)
    said = message_of(poor.tell(_begin()), kind="refusal")["reason"]
    assert said == "the target_epsilon of one leaves no room for an answer" and "records of 0" in caplog.text


def test_a_malformed_question_costs_nothing(own: Path) -> None:
    node = _node(own)
    node.tell(INTRODUCE)
    node.tell(_begin())
    arrays, config = question_to(question())
    for wrong in ([], [b"x", arrays[1]], [arrays[1], arrays[1]]):
        assert not node.ask(wrong, config)[0]
    assert node._client is not None and not node._client.annotator.account.counts()
    assert node.ask(arrays, config)[0], "and the next one is answered"


def test_networks_of_the_files_are_those_of_the_tests(own: Path) -> None:
    node = _node(own)
    node.tell(INTRODUCE)
    assert node._client is not None
    images = question().images
    expected = small_network(0).eval()(images)
    assert torch.allclose(node._client.teacher.logits(images), expected, atol=1e-6)
