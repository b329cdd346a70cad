# experiments/my-experiment/main.py
from src.environment import ScopedSandbox, SandboxConfig, ModelConfig
from src.workspace import Workspace, Library
from src.execution import create_local_session
from src.harness import run_agent

# Create scoped sandbox
scoped = ScopedSandbox(SandboxConfig(
    gpu="A100",
    models=[ModelConfig(name="google/gemma-2-9b")],
    python_packages=["torch", "transformers", "accelerate"],
))
scoped.start()

# Serve interface.py as RPC library
model_tools = scoped.serve(
    str(Path(__file__).parent / "interface.py"),
    expose_as="library",
    name="model_tools"
)

# Create workspace with RPC library
workspace = Workspace(libraries=[model_tools])

# Create local session (agent runs locally)
session = create_local_session(
    workspace=workspace,
    workspace_dir="./workspace",
    name="my-experiment"
)

# Agent can now call model_tools functions
task = """
Import model_tools and:
1. Call get_model_info() to see model specs
2. Call generate_text("Once upon a time") to generate text
3. Call compare_texts("hello", "hi") to compare similarity
"""

async for msg in run_agent(prompt=task, mcp_config=session.mcp_config):
    pass
