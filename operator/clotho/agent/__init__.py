"""Training for agents: ten tools over MCP, backed by the custom resources."""
