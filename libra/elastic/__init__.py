"""The hybrid pool: membership, moves and gradient weights as pure state machines."""
