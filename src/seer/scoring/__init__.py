"""Scores runs: was the planted property found, how often, and on what evidence?

An agent ends with a structured answer. Exact rules grade it against the ground truth, and a judge
model can be asked as well. Claims cite calls of the gate; `verify` checks them against the record.
"""

from seer.scoring._answer import CLAIMS_FORMAT, SCHEMA, Answer, answer_format, parse_answer
from seer.scoring._evidence import Verification, verify
from seer.scoring._gap import Gap, GapRow, gap_table, plot_gap, tool_gap
from seer.scoring._grade import Grade, grade
from seer.scoring._investigate import Outcome, investigate
from seer.scoring._judge import Labelled, agreement, judge, labelled_examples, measure_judge
from seer.scoring._rates import Rate, difference, rate
from seer.scoring._rerun import rerun_through
from seer.scoring._study import Study, study

__all__ = [
    "CLAIMS_FORMAT",
    "SCHEMA",
    "Answer",
    "Gap",
    "GapRow",
    "Grade",
    "Labelled",
    "Outcome",
    "Rate",
    "Study",
    "Verification",
    "agreement",
    "answer_format",
    "difference",
    "gap_table",
    "grade",
    "investigate",
    "judge",
    "labelled_examples",
    "measure_judge",
    "parse_answer",
    "plot_gap",
    "rate",
    "rerun_through",
    "study",
    "tool_gap",
    "verify",
]
