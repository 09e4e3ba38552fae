"""Tools that agents call, and the sandbox that their code runs in."""
