"""`LightningCLI verify FOLDER`: checks that an exported folder is unchanged and its ε correct for its releases."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from privacy.exported import check_export


def verify(args: Sequence[str]) -> None:
    """The command `verify FOLDER`.

    Raises:
        AlteredError: The folder was altered; the error says what.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="LightningCLI verify", description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", help="A folder that `export` or `distill` has written.")
    for line in check_export(Path(parser.parse_args(list(args)).folder)):
        print(line)
    print(
        "Nothing else in it was checked: its maker, its assumptions, other figures and what its pages say besides "
        "remain a matter of trust."
    )
