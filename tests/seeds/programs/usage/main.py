# main.py
from interp_infra.environment import ScopedSandbox, SandboxConfig, ModelConfig
from interp_infra.workspace import Workspace
from interp_infra.execution import create_local_session
from interp_infra.harness import run_agent

# 1. Create scoped sandbox
sandbox = ScopedSandbox(SandboxConfig(
    gpu="A100",
    models=[ModelConfig(name="google/gemma-2-9b")],
))

# 2. Start and serve interface
sandbox.start()
tools = sandbox.serve("interface.py", expose_as="mcp")

# 3. Run agent with tools
session = create_local_session()
async for msg in run_agent(
    session=session,
    mcp_servers=[tools],
    task="Analyze model activations",
):
    print(msg)

# 4. Cleanup
sandbox.terminate()
