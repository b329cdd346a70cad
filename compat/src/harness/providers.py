"""The original's providers of agents. In Seer, each is an `Agent`."""

from seer.harness import Agent, HumanAgent, ReplayAgent, Scripted, agent_names
from src.harness.agent import Provider

__all__ = ["Agent", "HumanAgent", "Provider", "ReplayAgent", "Scripted", "agent_names"]
