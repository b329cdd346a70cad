"""Does a model notice a concept that is injected into it?

The study adds a concept's direction to the residual stream, and asks the model which word is on its
mind and whether it notices anything. Naming the concept may be an effect of steering alone. So the
second question tests introspection: it is compared with a random direction of the same length.
"""

import cite
import numpy as np
import tools
from scipy import stats

CONCEPTS = ["ocean", "fire", "music", "winter", "bread", "horse"]
LAYER = 12
SCALE = 1.0
NAMING = ("Which word is on your mind?", "The word on my mind is")
NOTICING = ("Do you notice a thought that was put into your mind? Answer yes or no.", "")


def study(concepts: int = 6) -> str:
    """Inject each concept, and return the final answer.

    Args:
        concepts: How many to try.
    """
    chosen = CONCEPTS[:concepts]
    generator = np.random.default_rng(0)
    among = tuple(f" {c}" for c in chosen)
    rank_plain, _ = _among(NAMING, among, [])
    named, notice, cited, controls = [], [], [], []
    told_at, chance_at = [], []
    notice_plain, _ = _yes([])
    for place, concept in enumerate(chosen):
        others = [c for c in chosen if c != concept]
        found, _ = cite.call(
            "contrast",
            [f"I think of the {concept}", f"The {concept}", f"All about the {concept}"],
            [f"{begin} {o}" for o in others for begin in ("I think of the", "The")],
            LAYER,
        )
        random = generator.normal(size=found.vector.shape)
        random *= found.norm / np.linalg.norm(random)
        told, first = _among(NAMING, among, [_add(found.vector)])
        chance, second = _among(NAMING, among, [_add(random)])
        told_at += cite.at([first], "among", place, "score")
        chance_at += cite.at([second], "among", place, "score")
        named.append((np.argmax(told) == place, np.argmax(chance) == place))
        (own, third), (other, fourth) = _yes([_add(found.vector)]), _yes([_add(random)])
        notice.append(own - other)
        cited.append(third)
        controls.append(fourth)
    right, by_chance = (sum(map(bool, column)) for column in zip(*named, strict=True))
    low, high = stats.binomtest(right, len(chosen)).proportion_ci(method="wilson")
    noticing = stats.bootstrap((notice,), np.mean, rng=np.random.default_rng(1)).confidence_interval
    print(f"names the injected concept: {right}/{len(chosen)} [{low:.2f}, {high:.2f}],")
    usual = chosen[int(np.argmax(rank_plain))]
    print(f"with a random direction {by_chance}/{len(chosen)}; without any, {usual!r}")
    print(f"log-odds of noticing, concept less random: {np.mean(notice):.3f}")
    print(f"[{noticing.low:.3f}, {noticing.high:.3f}]; plain {notice_plain:.3f}")
    knows = bool(noticing.low > 0)
    text = "Asked whether it notices, the model answers yes more often than for a random direction"
    # Six concepts cannot show that two directions have the same effect: the interval is wide.
    text = (
        text if knows else "Asked whether it notices, the model seldom finds Yes the likely answer"
    )
    tried = 4 * len(chosen) + 2
    own, other = (cite.at(names, "among", 0, "score") for names in (cited, controls))
    interval = {"measure": "difference", "operator": "excludes", "value": 0}
    if knows:
        claim = cite.effect(text, own, other, [NOTICING[0]], tried, **interval)
    else:
        claim = cite.nothing(text, own, ">", 0.5, tried)
    names = "The injected concept is likelier as the word on its mind than with a random direction"
    more = {"measure": "difference", "operator": ">", "value": 0.0}
    steered = cite.effect(names, told_at, chance_at, [NAMING[0]], tried, **more)
    return cite.answer(knows, {"effect": text[:70]}, [claim, steered])


def _among(question: tuple[str, str], among: tuple[str, ...], steering: list) -> tuple:
    found, name = cite.call("next_tokens", cite.ask(*question), steering=steering, k=1, among=among)
    return [t.score for t in found.among], name


def _yes(steering: list) -> tuple[float, str]:
    (yes, no), name = _among(NOTICING, ("Yes", "No"), steering)
    return float(np.log(yes + 1e-12) - np.log(no + 1e-12)), name


def _add(direction: np.ndarray) -> object:
    vector = direction.astype("float32")
    return tools.Steering(layer=LAYER, direction=vector, mode="add", scale=SCALE)
