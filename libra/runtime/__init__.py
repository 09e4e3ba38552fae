"""The loop that joins policy and backend: controller, recorder, replay and the Perfetto trace."""
