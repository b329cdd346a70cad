"""Texts use plain words: no phrase of this list comes back.

The list has idioms that were translated word for word, inverted clauses, and words for places or
people that are used for other things. Each names what to write instead. `docs/glossary.md` has the
terms with a special meaning.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THINGS = "agent|caller|client|copy|gate|host|kernel|machine|process|program|server|thread"
PLACE = "here|there|below|above|before|behind|at|on|in (?!for\\b|the way\\b|the city\\b)"
AFTER_NO = "evidence|longer|more|such|need|reason|way|other|one|use\\b"

# In lower case, from the beginning of a word.
PHRASES = {
    r"half (a )?characters?": "lone surrogate",
    r"(has|have|had) not(?=[.,;:)\"]|$)": "does not have",
    rf"(?<!there )(?<!where )(is|was) no (?!{AFTER_NO})": "is not a",
    r"to nobody\b": "say who cannot use it",
    r"who(m|so)?ever\b": "the caller, the user, the process that",
    r"whatever\b": "any, everything, or: regardless of",
    r"shall\b": "must, should or will",
    r"of late\b": "recently",
    r"anew\b": "again, or: a new ...",
    r"by heart\b": "without parsing",
    r"in the place of\b": "instead of",
    rf"({THINGS})s? who\b": "that",
    r"(of|to|for) whom\b": "which",
    r"doubtful\b": "warnings, problems",
    r"(machines?|hosts?|providers?) elsewhere\b": "remote machines, remote hosts",
    r"next to nothing\b": "almost nothing",
    r"last (words|moments)\b": "last output, final text",
    r"least work\b": "minimal",
    r"(told|tells?) of\b": "told about, learns, reports",
    r"(at most|as|only|are|just) so many\b": "this many",
    rf"stands? ({PLACE})": "is",
    r"(lies|lay|lie) (in|on|at|below|above|beside|behind|over)\b": "is",
    r"(mourn|bury|buried|freight|guests)\b": "a word of the glossary",
    r"(thereof|hereof|thereupon|hereupon|whereupon|whilst|lest|hitherto)\b": "plain words",
    r"as soon as it is not\b": "when it ends",
    r"could not be asked\b": "could not reach",
    r"about so many\b": "about this many",
    r"rests? on wh(at|ich)\b": "cites, is based on",
    r"(names|texts|lines|words) that begin so\b": "that begin with it",
    r"dead (controllers|programs|clients)\b": "programs that died",
    r"(give|gave|given) back (a|the) (values?|results?|arrays?)\b": "return",
    r"(get|gets|got) to (run_agent|its agent|the agent)\b": "reach",
}
ANY = re.compile(r"\b(?:" + "|".join(PHRASES) + ")")
BREAK = re.compile(r"\n[ \t]*(?:#|//|\*|>)?[ \t]*")

SUFFIXES = {".py", ".md", ".js", ".toml", ".html"}
PLACES = ("src", "docs", "experiments")
ALLOWED = {
    "experiments/hidden-preference/baseline.py": "questions to a model",
}


def texts() -> list[Path]:
    found = [path for path in ROOT.glob("*.md") if path.is_file()]
    for place in PLACES:
        found += [path for path in (ROOT / place).rglob("*") if path.suffix in SUFFIXES]
    return sorted(path for path in found if str(path.relative_to(ROOT)) not in ALLOWED)


def hits(text: str) -> list[tuple[int, str, str]]:
    """The phrases in a text, also those that a line break splits: line, phrase, better words."""
    plain = BREAK.sub(" ", text.lower())
    return [
        (_line(text, plain[: match.start()]), match[0], instead)
        for match in ANY.finditer(plain)
        for pattern, instead in PHRASES.items()
        if re.match(pattern, plain[match.start() :])
    ]


def _line(text: str, before: str) -> int:
    """The line of a text that begins like `before`, which has no line breaks."""
    left = len(before.replace(" ", ""))
    for number, line in enumerate(text.splitlines(), 1):
        left -= len(BREAK.sub("", "\n" + line).replace(" ", ""))
        if left < 0:
            return number
    return 1


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("Half a character is text to nobody.", "half a character"),
        ("A layer it has not.", "has not"),
        ("Move away from a copy who can be moved.", "copy who"),
        ("# It stands\n# below.", "stands below"),
        ("You shall not.", "shall"),
        ("It is no name.", "is no "),
    ],
)
def test_the_phrases_are_found(text: str, phrase: str) -> None:
    assert phrase in [found for _, found, _ in hits(text)]


@pytest.mark.parametrize(
    "text",
    [
        "It has not stopped.",
        "A test double stands in for it.",
        "The claim stands.",
        "There is no name.",
    ],
)
def test_plain_sentences_pass(text: str) -> None:
    assert not hits(text)


def test_texts_use_plain_words() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {phrase!r}: write {instead}"
        for path in texts()
        for line, phrase, instead in hits(path.read_text())
    ]
    assert not wrong, f"{len(wrong)} phrases:\n" + "\n".join(wrong)
