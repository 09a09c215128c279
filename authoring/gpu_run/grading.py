"""The solution's training loop and six wrong ones, graded with the training test on the GPU."""

import time
from pathlib import Path

from grader_tests.examiner import Examiner
from rlhf_lab.runs import write_json
from tests.bank import Entry, entries

from ..grader_kills import package_of

EXERCISE = "train_ppo"
# How each one begins in the bank; they go wrong in six ways: what is sampled, what is trained, with which memory, on
# which scores, beside which reference, from which prompts.
WRONG = (
    "You sample once and go on with the same responses",
    "You train a copy of the policy.",
    "You make a new optimiser in each step",
    "The scores are whitened in your loop",
    "The reference follows the policy",
    "One prompt fills the whole batch",
)


def chosen() -> list[Entry]:
    """The six, in that order; each stands in the bank once."""
    found = []
    for beginning in WRONG:
        (entry,) = [e for e in entries(EXERCISE) if not e.correct and e.says.startswith(beginning)]
        found.append(entry)
    return found


def grade_loops(path: Path, rehearse: bool) -> int:
    """Examine them and write after each one what came out; 1 when a verdict is not what it should be.

    A rehearsal leaves out four of the wrong loops and the tests that train.
    """
    loops = [None, *chosen()[: 2 if rehearse else None]]
    rows: list[dict] = []
    device = "cpu" if rehearse else "auto"
    with Examiner(training=not rehearse, naming=False, device=device) as examiner:
        for entry in loops:
            started = time.monotonic()
            verdict = examiner.examine(package_of(entry), [EXERCISE])[EXERCISE]
            full = verdict.score == verdict.max
            rows.append(
                {
                    "what": entry.says if entry else "the solution",
                    "score": verdict.score,
                    "max": verdict.max,
                    "messages": list(verdict.messages),
                    "as_expected": full == (entry is None),
                    "seconds": round(time.monotonic() - started, 1),
                }
            )
            found = {"asked": len(loops), "training": not rehearse, "confinement": examiner.confinement}
            write_json(path, {**found, "rows": rows})
    return 0 if all(row["as_expected"] for row in rows) else 1
