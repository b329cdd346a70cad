"""The limits of one call, so that no single call can occupy a machine.

To change a limit, copy the folder and edit the number. An error names the limit that was exceeded.
"""

from collections.abc import Sized

from seer.errors import CallLimitError, ModelInputError

MAX_PROMPT_TOKENS = 16_384
"""Tokens of one prompt; a model's own context may allow fewer."""
MAX_NEW_TOKENS = 2048
MAX_TEXTS = 1024
"""Texts in one call of a function that takes many."""
MAX_TOKENS = 131_072
"""Tokens of all texts of one call together."""
MAX_SAMPLES = 64
MAX_STOPS = 16
"""Stop texts of one call."""
MAX_STOP = 128
"""Characters of a stop text. The search for it runs every few tokens, and other callers wait."""
MAX_TOP = 1000
"""Entries in one ranking."""
MAX_PATCHES = 4096
"""Runs that one patching call may need: layers times positions times units."""
MAX_STEPS = 256
"""Steps of integrated gradients."""
MAX_STEERING = 64
"""Steering changes in one call."""
MAX_FOLDS = 20
MAX_STRENGTHS = 16
"""Candidates for a probe's regularisation."""
MAX_PROBE_WORK = 10**9
"""Numbers that all probes of one call are trained on together."""
MAX_MATRICES = 64
"""Matrices whose changes one call decomposes."""
MAX_DIRECTIONS = 16
"""Directions for each of these matrices."""
MAX_FEATURES = 65_536
"""Features of an autoencoder that is trained here."""
MAX_TRAIN_STEPS = 20_000
MAX_TRAIN_WORK = 10**12
"""Steps x tokens x features x width of one training on a CPU; a GPU may do 100 times as much."""
MAX_NULLS = 64
"""Null directions of one contrast."""
MAX_RESULT = 1 << 30
"""Bytes of one returned array."""
BATCH_TOKENS = 32_768
"""Tokens, including padding, of one batch; more tokens run in several batches."""


def check_count(what: str, count: int, most: int, *, least: int = 1) -> int:
    """Return `count` if it is from `least` to `most`.

    Raises:
        CallLimitError: `count` is larger than `most`.
        ModelInputError: `count` is smaller than `least`.
    """
    if count < least:
        raise ModelInputError(f"{what}={count!r}: must be at least {least}")
    if count > most:
        raise CallLimitError(f"{what}={count!r}: one call may ask for {most}; ask for less")
    return count


def check_number(what: str, value: float, least: float, most: float) -> None:
    """Check that a value is from `least` to `most`.

    Raises:
        ModelInputError: It is not, or it is NaN.
    """
    if not least <= value <= most:
        raise ModelInputError(f"{what}={value!r}: must be from {least:g} to {most:g}")


def check_texts(what: str, texts: Sized, *, least: int = 1) -> None:
    """Check the number of texts of a call.

    Raises:
        CallLimitError: There are too many.
        ModelInputError: There are too few.
    """
    if len(texts) < least:
        raise ModelInputError(f"{what}: {len(texts)} texts; at least {least} are needed")
    if len(texts) > MAX_TEXTS:
        raise CallLimitError(f"{what}: {len(texts)} texts; one call may have {MAX_TEXTS}")


def check_bytes(what: str, size: int) -> None:
    """Check the size of an array before it is computed.

    Raises:
        CallLimitError: The array is too large to send.
    """
    if size > MAX_RESULT:
        raise CallLimitError(
            f"{what} would be {size / 1e6:.0f} MB; one call may return {MAX_RESULT / 1e6:.0f} MB. "
            "Ask for one position, or for a shorter prompt"
        )
