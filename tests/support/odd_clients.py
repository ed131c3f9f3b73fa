"""`python -m support.odd_clients client ...`: a client that, from round 2 on, sends what its name says."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

import torch

from lightning_modules.cli import main
from lightning_modules.federated import Node
from lightning_modules.federated.messages import Scalar, from_bytes, to_bytes, unpack

FROM = 2


def spoil(name: str) -> None:
    """Has every client of this process answer otherwise, once its own session has charged the answer."""
    honest = Node.answer

    def answer(
        self: Node, arrays: Sequence[bytes], config: Mapping[str, Scalar]
    ) -> tuple[list[bytes], dict[str, Scalar]]:
        answers, said = honest(self, arrays, config)
        if unpack(said)[1].get("number", 0) < FROM:
            return answers, said
        gradients = from_bytes(answers[0], shape=(8, 10), dtype=torch.float32)
        if name == "late":
            time.sleep(6)
        elif name == "nan":
            gradients = torch.full_like(gradients, torch.nan)
        elif name == "narrow":
            gradients = gradients[:, :-1]
        elif name == "garbled":
            return [b"not an array"], said
        return [to_bytes(gradients)], said

    Node.answer = answer  # type: ignore[method-assign]


if __name__ == "__main__":
    spoil(sys.argv[sys.argv.index("--name") + 1])
    main()
