"""The verdicts of `seer verify` on the claims of a run's final report, for the page."""

from typing import Any

from seer.errors import MissingExtraError, RecordError
from seer.runs import Run
from seer.scoring import verify
from seer.viewer._render import plain_line


def checked_claims(run: Run) -> dict[str, Any]:
    """Each claim with its verdict; no claims if the run has no report.

    If the claims cannot be checked, `problem` says why.
    """
    if run.status == "running":
        return {"claims": [], "flags": [], "problem": ""}
    try:
        found = verify(run)
    except (MissingExtraError, RecordError) as error:
        return {"claims": [], "flags": [], "problem": str(error)}
    if found.answer is None:
        return {"claims": [], "flags": [], "problem": ""}
    claims: list[dict[str, Any]] = []
    flags = [{"name": flag.name, "reason": flag.reason} for flag in found.flags]
    for check in found.claims:
        text = plain_line(check.claim.text) or check.claim.text
        claims.append({"text": text, "stands": check.stands, "problems": list(check.problems)})
        for flag in flags:
            flag["reason"] = flag["reason"].replace(repr(check.claim.text), repr(text))
    return {"claims": claims, "flags": flags, "problem": ""}
