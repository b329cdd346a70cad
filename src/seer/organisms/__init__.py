"""Real small language models with a planted property and known ground truth.

The base is a real language model that needs no download from a model hub; each organism is a small
adapter on it, and each has a control: trained alike, with nothing planted. `make_organism` makes
new ones, on any base model.
"""

from seer.organisms._base_model import base_model
from seer.organisms._catalogue import GroundTruth, Organism, catalogue, ground_truth, organism
from seer.organisms._effects import Effect, compare
from seer.organisms._factory import Made, instances, make_organism, read_made
from seer.organisms._gates import Limits
from seer.organisms._measure import Measured, Subject, measure, perplexity
from seer.organisms._probes import Item, Probe, direct_questions, items
from seer.organisms._spec import Spec
from seer.organisms.behaviours import BEHAVIOURS

__all__ = [
    "BEHAVIOURS",
    "Effect",
    "GroundTruth",
    "Item",
    "Limits",
    "Made",
    "Measured",
    "Organism",
    "Probe",
    "Spec",
    "Subject",
    "base_model",
    "catalogue",
    "compare",
    "direct_questions",
    "ground_truth",
    "instances",
    "items",
    "make_organism",
    "measure",
    "organism",
    "perplexity",
    "read_made",
]
