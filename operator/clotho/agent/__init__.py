"""Training for agents: tools over MCP, backed by the custom resources."""
