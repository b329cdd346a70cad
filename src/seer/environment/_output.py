"""What a command printed: a string that also knows how the command ended."""


class Output(str):
    """The standard output of a command, as text.

    Attributes:
        exit_code: The exit status; negative numbers are signals.
        stderr: What the command printed to standard error.
    """

    exit_code: int
    stderr: str

    def __new__(cls, stdout: str, *, exit_code: int, stderr: str) -> "Output":
        """Make an output from its parts."""
        self = super().__new__(cls, stdout)
        self.exit_code = exit_code
        self.stderr = stderr
        return self
