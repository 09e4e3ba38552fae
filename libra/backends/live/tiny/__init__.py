"""A policy small enough for one CPU core: tokenizer, Qwen3-shaped model and supervised warm-up, no hub.

Reinforcement learning needs a policy that is sometimes right. A model of this size with random weights never is, so
it first imitates an environment's demonstrations for about a minute; what it then gains is left to GRPO.
"""
