"""What several property tests draw from."""

from __future__ import annotations

from hypothesis import strategies as st

from libra.core.policy import Finished

requests = st.builds(
    Finished,
    prompt_tok=st.integers(1, 2000),
    generated_tok=st.integers(1, 30000),
    observed_tok=st.integers(0, 8000),
    num_turns=st.integers(1, 20),
    tool_s=st.floats(0, 300),
)
