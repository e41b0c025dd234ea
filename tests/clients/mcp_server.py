"""A server of the official package `mcp`: mcp_server.py stdio, or mcp_server.py PORT for streamable HTTP."""

import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def divide(a: float, b: float) -> float:
    """Divides two numbers."""
    return a / b


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run()
    else:
        server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
