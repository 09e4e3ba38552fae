"""Nouns of the project: records, events, commands, plans, policy protocols, registry, named random streams, errors."""
