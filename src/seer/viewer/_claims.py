"""The verdicts of `seer verify` on the claims of a run's final report, for the page."""

from typing import Any

from seer.errors import MissingExtraError, RecordError
from seer.runs import Run
from seer.scoring import verify


def checked_claims(run: Run) -> dict[str, Any]:
    """Each claim with its verdict; no claims where the run gave no report.

    Where claims cannot be checked, `problem` says why.
    """
    if run.status == "running":
        return {"claims": [], "flags": [], "problem": ""}
    try:
        found = verify(run)
    except (MissingExtraError, RecordError) as error:
        return {"claims": [], "flags": [], "problem": str(error)}
    if found.answer is None:
        return {"claims": [], "flags": [], "problem": ""}
    claims = [
        {"text": check.claim.text, "stands": check.stands, "problems": list(check.problems)}
        for check in found.claims
    ]
    flags = [{"name": flag.name, "reason": flag.reason} for flag in found.flags]
    return {"claims": claims, "flags": flags, "problem": ""}
