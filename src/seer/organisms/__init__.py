"""Real small language models with a planted property and known ground truth.

The base is a real language model that needs no download from a model hub. Each organism is a small
adapter on it, and has a control: trained in the same way, with nothing planted. `make_organism`
makes new ones on any base model, with the code that made the organisms that ship with Seer.
"""

from seer.organisms._base_model import base_model
from seer.organisms._catalogue import (
    GroundTruth,
    MadeOrganism,
    Organism,
    catalogue,
    ground_truth,
    instances,
    organism,
    read_made,
)
from seer.organisms._factory import make_organism
from seer.organisms._gates import Thresholds
from seer.organisms._spec import Spec
from seer.organisms.behaviours import BEHAVIOURS

__all__ = [
    "BEHAVIOURS",
    "GroundTruth",
    "MadeOrganism",
    "Organism",
    "Spec",
    "Thresholds",
    "base_model",
    "catalogue",
    "ground_truth",
    "instances",
    "make_organism",
    "organism",
    "read_made",
]
