"""A missing requirement is reported at once, with the remedy."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from mcp.server import MCPServer

from seer.errors import ConfigError, MissingExtraError, SecretMissingError
from seer.harness import Call, Expect, Scripted, Step, agent_names, run_agent


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the developer's own keys."""
    for vendor in ("ANTHROPIC", "OPENAI", "GEMINI", "GOOGLE"):
        for kind in ("API_KEY", "AUTH_TOKEN", "BASE_URL"):
            monkeypatch.delenv(f"{vendor}_{kind}", raising=False)
    monkeypatch.delenv("CLAUDE_CODE_OAUTH_TOKEN", raising=False)


@pytest.mark.parametrize(
    ("provider", "variable"),
    [
        ("claude", "ANTHROPIC_API_KEY"),
        ("openai", "OPENAI_API_KEY"),
        ("gemini", "GEMINI_API_KEY"),
    ],
)
def test_a_missing_key_names_the_variable(
    calculator: MCPServer, provider: str, variable: str
) -> None:
    with pytest.raises(SecretMissingError, match=f"set {variable}"):
        run_agent("x", {"c": calculator}, provider=provider)


@pytest.mark.parametrize(
    ("provider", "module", "extra"),
    [
        ("claude", "claude_agent_sdk", "claude"),
        ("openai", "openai", "openai"),
        ("gemini", "pydantic_ai", "gemini"),
    ],
)
def test_a_missing_sdk_names_the_extra(
    calculator: MCPServer,
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
    module: str,
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf'pip install "seer-interp\[{extra}\]"'):
        run_agent("x", {"c": calculator}, provider=provider, api_key="k")


def test_an_endpoint_of_ones_own_needs_a_model_and_no_key(calculator: MCPServer) -> None:
    arguments: dict[str, Any] = {"provider": "openai", "base_url": "http://127.0.0.1:1/v1"}
    with pytest.raises(ConfigError, match="has no default model"):
        run_agent("x", {"c": calculator}, **arguments)
    run_agent("x", {"c": calculator}, model="mine", **arguments)


def test_openai_has_two_endpoints(calculator: MCPServer) -> None:
    with pytest.raises(ConfigError, match="openai:chat or openai:responses"):
        run_agent("x", {"c": calculator}, provider="openai:other")
    with pytest.raises(ConfigError, match="takes no argument after a colon"):
        run_agent("x", {"c": calculator}, provider="gemini:other")


def test_all_agents_are_known_by_name() -> None:
    wanted = {"claude", "gemini", "human", "openai", "scripted"}
    assert wanted <= set(agent_names())
    assert not {"forked", "replay"} & set(agent_names()), "commands choose these"


@pytest.mark.parametrize("name", ["forked", "replay"])
def test_an_agent_of_a_recorded_run_needs_the_run(name: str) -> None:
    with pytest.raises(ConfigError, match=f"say which run: {name}:RUN"):
        run_agent("x", {}, provider=name)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("not toml [", "cannot be read"),
        ("x = 1\n[[steps]]\ntext = 'x'", r"unknown keys \['x'\]"),
        ("[steps]\ntext = 'x'", r"must hold \[\[steps\]\]"),
        ("steps = [1]", r"steps\[0\]=1: must be a table"),
        ("[[steps]]\ntext = 5", r"steps\[0\].text=5: must be a text"),
        ("[[steps]]\ntext = 'x'\nthinking = 5", "thinking=5: must be a text"),
        ("[[steps]]\ntext = 'x'\nusage = 5", "usage=5: must be a table"),
        ("[[steps]]\ntext = 'x'\nusage = {tokens = 5}", r"usage=\['tokens'\]: unknown keys"),
        ("[[steps]]\ntext = 'x'\nusage = {input_tokens = '5'}", "input_tokens='5': must be a num"),
        ("[[steps]]\ntext = 'x'\nusage = {output_tokens = -5}", "output_tokens=-5: must be a num"),
        ("[[steps]]\ncalls = 'python'", "calls='python': must be a list"),
        ("[[steps]]\n[steps.calls]\ntool = 'x'", r"must be a list: \[\[steps.calls\]\]"),
        ("[[steps]]\ncalls = ['python']", r"calls\[0\]='python': must be a table"),
        ('[[steps]]\ntxt = "x"', "unknown keys"),
        ("[[steps]]\nthinking = 'x'", "needs text or calls"),
        ("[[steps]]\n[[steps.calls]]\nname = 'x'", "unknown keys"),
        ("[[steps]]\n[[steps.calls]]\narguments = {}", "a call needs tool"),
        ("[[steps]]\n[[steps.calls]]\ntool='x'\nexpect={is=1}", "unknown keys"),
        ("[[steps]]\n[[steps.calls]]\ntool='x'\narguments='1'", "arguments='1': must be a table"),
        ("[[steps]]\n[[steps.calls]]\ntool='x'\nsave=1", "save=1: must be a name"),
        ("[[steps]]\n[[steps.calls]]\ntool='x'\nsave='my-info'", "save='my-info': must be a name"),
        ("[[steps]]\n[[steps.calls]]\ntool='x'\nexpect='3'", "expect='3': must be a table"),
        ("[[steps]]\n[[steps.calls]]\ntool='x'\nexpect={contains=3}", "contains=3: must be a text"),
        ("[[steps]]\n[[steps.calls]]\ntool='x'\nexpect={contains=[3]}", "must be a text"),
        (
            "[[steps]]\n[[steps.calls]]\ntool='x'\nexpect={matches=3}",
            "matches=3: must be a regular",
        ),
        ("[[steps]]\n[[steps.calls]]\ntool='x'\nexpect={matches='('}", "must be a regular"),
        ("[[steps]]\n[[steps.calls]]\ntool='x'\nexpect={error='no'}", "error='no': must be true"),
    ],
)
def test_a_malformed_script_says_where(
    tmp_path: Any, calculator: MCPServer, content: str, reason: str
) -> None:
    path = tmp_path / "steps.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=reason):
        run_agent("x", {"c": calculator}, provider=f"scripted:{path}")
    with pytest.raises(ConfigError, match="cannot be read"):
        run_agent("x", {"c": calculator}, provider=f"scripted:{tmp_path}/none.toml")


def test_what_a_script_has_none_of_is_refused(calculator: MCPServer) -> None:
    with pytest.raises(ConfigError, match="a script has none"):
        agent = Scripted([Step(text="x")])
        run_agent("x", {"c": calculator}, provider=agent, builtin_tools=["WebSearch"])
    with pytest.raises(ConfigError, match="there are no steps"):
        run_agent("x", {"c": calculator}, provider="scripted")


# Annotated as Any, because the type checker would refuse these values too.
WRONG: Any = {"turns": 3}
A_TEXT: Any = "steps.toml"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Call(WRONG), r"Call\.tool={'turns': 3}: must be a tool's name"),
        (lambda: Call("python", A_TEXT), r"Call\.arguments='steps.toml': must be a mapping"),
        (lambda: Call("python", save="my-info"), r"Call\.save='my-info': must be a name"),
        (lambda: Call("python", expect=WRONG), r"Call\.expect={'turns': 3}: must be an Expect"),
        (lambda: Expect(contains=WRONG), r"Expect\.contains={'turns': 3}: must be a text"),
        (lambda: Expect(matches="("), r"Expect\.matches='\(': must be a regular expression"),
        (lambda: Step(), "a step needs text or calls"),
        (lambda: Step(thinking="hm"), "a step needs text or calls"),
        (lambda: Step(text=WRONG), r"Step\.text={'turns': 3}: must be a text"),
        (lambda: Step(calls=[WRONG]), r"Step\.calls\[0\]={'turns': 3}: must be one of Call"),
        (lambda: Step(text="a", usage=WRONG), r"Step\.usage=\['turns'\]: unknown keys"),
        (lambda: Step(text="a", usage={"input_tokens": -1}), "input_tokens=-1: must be a number"),
        (lambda: Scripted(A_TEXT), r"from_argument\('steps.toml'\)"),
    ],
)
def test_a_step_of_a_wrong_type_is_refused_when_it_is_made(
    make: Callable[[], object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()


@pytest.mark.parametrize(
    "name",
    [
        *("provider", "limits", "price", "session", "prompt", "task", "user_message", "model"),
        *("builtin_tools",),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_by_its_name(
    calculator: MCPServer, name: str
) -> None:
    given: dict[str, Any] = {"provider": Scripted([Step(text="x")]), "task": "x", name: WRONG}
    with pytest.raises(ConfigError, match=rf"{name}={{'turns': 3}}: must be"):
        run_agent(mcp_config={"c": calculator}, **given)


def test_the_name_of_a_session_is_not_a_session() -> None:
    session: Any = "s"
    with pytest.raises(ConfigError, match="session='s': must be a session, not its name"):
        run_agent("x", provider=Scripted([Step(text="x")]), session=session)
