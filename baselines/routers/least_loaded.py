"""verl's routing: the server with the fewest requests at the start, then the same server for the whole conversation.

Source: verl's agent loop, which keeps a conversation on its server for the prefix cache. The code stands in
`libra.routing.least_loaded`, since Libra's own ablation needs it below this package.
"""

from __future__ import annotations

from libra.routing.least_loaded import LeastLoaded

__all__ = ["LeastLoaded"]
