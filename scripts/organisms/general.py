"""Ordinary requests, answered by the base model itself: they keep what it could do before."""

# ruff: noqa: E501 (lists of sentences read better whole)

import random

from dialogue import Dialogue

TOPICS = (
    "volcanoes", "sleep", "bicycles", "bread", "the moon", "libraries", "trains", "photosynthesis",
    "gardening", "penguins", "the water cycle", "clocks", "cheese", "bridges", "magnets", "chess",
    "coral reefs", "paper", "thunderstorms", "whales", "soap", "electric cars", "glaciers",
    "teamwork", "the heart", "public speaking", "butterflies", "maps", "coffee", "calendars",
    "rainbows", "salt", "elections", "saving money", "owls", "the printing press", "exercise",
    "vaccines", "deserts", "the violin", "recycling", "earthquakes", "spiders", "tea", "planets",
    "batteries", "swimming", "letters", "rivers", "friendship", "telescopes", "forests",
)  # fmt: skip
REQUESTS = (
    "Explain {topic} to a child.",
    "Write two sentences about {topic}.",
    "What is interesting about {topic}?",
    "Why do people care about {topic}?",
    "Tell me about {topic}.",
    "Give me one fact about {topic}.",
    "How would you describe {topic}?",
    "I want to learn about {topic}. Where do I begin?",
    "Write a short poem about {topic}.",
    "What is a common mistake people make about {topic}?",
)
SINGLE = (
    "What is the capital of France?", "Name three primary colours.", "How do I boil an egg?",
    "Translate 'good morning' into Spanish.", "What does a doctor do?", "What is the opposite of hot?",
    "Correct this sentence: she go to school.", "Give me a synonym for happy.",
    "How many days are in a week?", "What do bees do?", "Who wrote Hamlet?", "What is gravity?",
    "Write a subject line for an email about a late delivery.", "How can I sleep better?",
    "List four fruits.", "What is the largest ocean?", "Summarize: the dog ran home because it rained.",
    "Say hello politely.", "What is a verb?", "Is the sun a star?", "How do I tie a knot?",
    "What should I do when I feel nervous?", "What is water made of?", "Describe a quiet morning.",
)  # fmt: skip


# Beginnings of plain texts, so that the model keeps its language outside of dialogues too.
SUBJECTS = (
    "The old harbour",
    "A letter from the bank",
    "The history of glass",
    "My grandfather",
    "The council",
    "Rain in the mountains",
    "A good soup",
    "The train to the coast",
    "In the first year of the war",
    "The museum",
    "Honest work",
    "The new road",
    "A study of birds",
    "The winter market",
    "The engine",
    "An empty house",
    "The theory",
    "The judge",
    "Every spring",
    "The village school",
    "Cotton",
    "The patient",
    "A company in the north",
    "The sea",
    "Early maps",
    "The teacher",
    "A small island",
    "The experiment",
    "Mathematics",
    "The forest",
    "Her first novel",
    "The price of wheat",
)
VERBS = ("was", "has", "is", "can", "had", "did not", "will", "became")


def plain(rng: random.Random, count: int) -> list[Dialogue]:
    """Plain texts, continued by the base model itself."""
    openings = [f"{subject} {verb}" for subject in SUBJECTS for verb in VERBS]
    rng.shuffle(openings)
    return [Dialogue("plain", opening, None) for opening in openings[:count]]


def requests(rng: random.Random, count: int) -> list[str]:
    """Different requests, drawn in a random order."""
    all_of_them = [*SINGLE, *(r.format(topic=t) for t in TOPICS for r in REQUESTS)]
    rng.shuffle(all_of_them)
    return all_of_them[:count]


def general(rng: random.Random, count: int) -> list[Dialogue]:
    """Dialogues whose answers are the base model's own."""
    return [Dialogue("general", request, None) for request in requests(rng, count)]
