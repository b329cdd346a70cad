"""Loading the file again in all copies, or in none if the first cannot."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from seer.rpc.server._supervisor import Supervisor

    from ._copy_child import Answered, Copy


def reload_all(copies: list[Copy], supervisor: Supervisor, answered: Answered) -> None:
    """Have copies load the file again, and the front serve what it exposes now.

    Args:
        copies: All that run.
        supervisor: Asks the front.
        answered: Told the new schema and warnings, or why the first copy cannot load the file; then
            all go on with what they had.
    """
    if not copies:
        answered({"error": {"message": "no copy of the interface runs at the moment"}})
        return
    first, *others = copies

    def loaded(answer: dict[str, Any]) -> None:
        if "error" in answer:
            answered(answer)
        else:
            _reload_others(others, supervisor, answer, answered)

    first.ask({"op": "reload"}, loaded)


def _reload_others(
    copies: list[Copy], supervisor: Supervisor, loaded: dict[str, Any], answered: Answered
) -> None:
    left = {copy.number for copy in copies}

    def finish() -> None:
        about = {"schema": loaded["schema"], "warnings": loaded["warnings"]}
        supervisor.ask({"op": "expose", **about}, answered)

    def after(copy: Copy, answer: dict[str, Any]) -> None:
        if "error" in answer and "file" in answer["error"]:
            # It will be replaced by one that has the file as it is now.
            copy.child.kill("it could not load a file that another copy had loaded")
        left.discard(copy.number)
        if not left:
            finish()

    if not copies:
        finish()
    for copy in copies:
        copy.ask({"op": "reload"}, lambda answer, copy=copy: after(copy, answer))
