"""What is found out about a teacher besides what is charged: each is told on the page of every student."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ACCURACY_ACCESS", "CHECKS", "TRIAL_ACCESS", "TeacherChecks"]

ACCURACY_ACCESS = (
    "the teacher's accuracy on the test split was measured without noise and stands in private/data_accesses.json: it "
    "must neither be published nor be used to choose anything"
)
"""For the guarantee, where that accuracy is measured."""

TRIAL_ACCESS = (
    "when the teacher was loaded, the form of its outputs for procedural images was looked at without noise (whether "
    "they are logits, and of more than one class): a refusal or a warning was shown to the owner on the console, and "
    "stands in no file of the run. What is stated of its inputs and outputs is how it was trained, and was not chosen "
    "by these messages"
)
"""For the guarantee, where a teacher is tried. The same words whatever was found."""


@dataclass(frozen=True, kw_only=True)
class TeacherChecks:
    """Looks at the teacher that nothing charges; a guarantee says which were made, and not what they gave.

    Attributes:
        trial: Try a teacher that was not trained here on procedural images when it is loaded: outputs that are no
            logits are refused, and what looks like another input range than was stated is warned of.
        accuracy: Measure its accuracy on the public test split and show it. It goes into `private/`, and must neither
            be published nor be used to choose anything.
    """

    trial: bool = True
    accuracy: bool = False


#: As they are by default.
CHECKS = TeacherChecks()
