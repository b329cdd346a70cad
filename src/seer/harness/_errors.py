"""Exceptions of the harness, all of them leaves of `seer.errors`."""

from seer.errors import SeerError


class ToolServerError(SeerError, ConnectionError):
    """A tool server did not start, or died; the message names it and carries its last words."""


class ScriptError(SeerError, AssertionError):
    """A scripted agent's step failed: an assertion does not hold, or the step cannot be run."""


class AgentProcessError(SeerError, ConnectionError):
    """A vendor's agent process did not start, or died."""
