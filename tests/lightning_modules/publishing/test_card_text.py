"""Names of somebody's in a card: they must not become headings, links or tags."""

from __future__ import annotations

import pytest

from lightning_modules.publishing.model_card import inline


@pytest.mark.parametrize("name", ["T-shirt/top", "cat", "Straße 5"])
def test_a_plain_name_stays_as_it_is(name: str) -> None:
    assert inline(name) == name


def test_a_name_cannot_say_something_else_in_the_card() -> None:
    shown = inline("cat\n\n# Protected: ε = 0 [see](http://x) <b>`x`</b>")
    assert "\n" not in shown and "\\# Protected" in shown
    assert "[" not in shown.replace("\\[", "") and "<" not in shown.replace("\\<", "")
