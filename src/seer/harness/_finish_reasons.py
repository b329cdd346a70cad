"""Why answers end: the vendors' words for the reason, and what it means for a run.

All vendors share one table, because their words do not collide.
"""

from seer.events import AnswerEnd, AnswerFinished, ErrorKind

_WORDS: dict[AnswerEnd, tuple[str, ...]] = {
    "stop": ("stop", "end_turn", "stop_sequence", "completed", "STOP", "eos", "eos_token"),
    "tool_calls": ("tool_calls", "function_call", "tool_use"),
    "length": (
        "length",
        "max_tokens",
        "max_output_tokens",
        "model_context_window_exceeded",
        "MAX_TOKENS",
        "CONTINUATION",
    ),
    "refused": (
        "refusal",
        "content_filter",
        "guardrail_intervened",
        "SAFETY",
        "RECITATION",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "MODEL_ARMOR",
    ),
    "paused": ("pause_turn",),
    "malformed_call": ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"),
}
_ENDS: dict[str, AnswerEnd] = {word: end for end, words in _WORDS.items() for word in words}

_PROBLEMS: dict[AnswerEnd, tuple[ErrorKind, str]] = {
    "length": ("incomplete", "the answer was cut off at the vendor's maximum of tokens"),
    "refused": ("refused", "the model, or the vendor's filter, refused to answer"),
    "paused": ("incomplete", "the vendor paused the answer and did not continue it"),
    "malformed_call": ("malformed", "the model made a tool call that cannot be read"),
    "unfinished": ("incomplete", "the answer ended, and the vendor did not say why"),
    "other": ("incomplete", "the vendor ended the answer for a reason that Seer does not know"),
}
_EMPTY: tuple[ErrorKind, str] = ("malformed", "the model gave an empty answer")


def end_of(word: str | None) -> AnswerEnd:
    """The meaning of a vendor's word, which is None if the vendor gave no reason."""
    return _ENDS.get(word, "other") if word else "unfinished"


def problem_of(answer: AnswerFinished, *, empty: bool) -> tuple[ErrorKind, str] | None:
    """Why this answer does not complete a run; None if it does.

    Args:
        answer: The last answer of the agent.
        empty: Whether the answer has no text.
    """
    kind, message = _PROBLEMS.get(answer.reason, _EMPTY if empty else (None, ""))
    if kind is None:
        return None
    word = answer.vendor_reason
    return kind, f"{message} ({word})" if word and answer.reason in _PROBLEMS else message
