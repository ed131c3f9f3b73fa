"""`python -m support.odd_clients client ...`: a client that, from round 2 on, sends what its name says."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

import torch

from lightning_modules.cli import main
from lightning_modules.federated.flower import Node
from lightning_modules.federated.flower.records import Scalar, array_of, question_from, tensor_of

FROM = 2


def spoil(name: str) -> None:
    """Has every client of this process answer otherwise, once its own annotator has charged the answer."""
    honest = Node.ask

    def ask(self: Node, arrays: Sequence[bytes], config: Mapping[str, Scalar]) -> tuple[list[bytes], dict[str, Scalar]]:
        answers, said = honest(self, arrays, config)
        if question_from(arrays, config).number < FROM:
            return answers, said
        answer = tensor_of(answers[0])
        if name == "late":
            time.sleep(6)
        elif name == "nan":
            answer = torch.full_like(answer, torch.nan)
        elif name == "narrow":
            answer = answer[:, :-1]
        elif name == "garbled":
            return [b"not an array"], said
        return [array_of(answer)], said

    Node.ask = ask  # type: ignore[method-assign]


if __name__ == "__main__":
    spoil(sys.argv[sys.argv.index("--name") + 1])
    main()
