"""What earns a reward: judges of the policy's own text."""
