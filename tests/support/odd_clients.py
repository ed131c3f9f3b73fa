"""`python -m support.odd_clients client ...`: a client that, from round 2 on, sends what its name says."""

from __future__ import annotations

import sys
import time

import torch

from lightning_modules.cli import main
from lightning_modules.federated import Node
from lightning_modules.federated.messages import pack, unpack

FROM = 2


def spoil(name: str) -> None:
    """Has every client of this process answer otherwise, once its own session has charged the answer."""
    honest = Node.answer

    def answer(self: Node, message: bytes) -> bytes:
        kind, values, tensors = unpack(said := honest(self, message))
        if values.get("number", 0) < FROM:
            return said
        gradients = tensors["answer"]
        if name == "late":
            time.sleep(6)
        elif name == "nan":
            gradients = torch.full_like(gradients, torch.nan)
        elif name == "narrow":
            gradients = gradients[:, :-1]
        elif name == "garbled":
            return b"not a message"
        return pack(kind, {"answer": gradients}, **values)

    Node.answer = answer  # type: ignore[method-assign]


if __name__ == "__main__":
    spoil(sys.argv[sys.argv.index("--name") + 1])
    main()
