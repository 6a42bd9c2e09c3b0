"""Hypothesis profiles: a short one that repeats exactly, and ``--hypothesis-profile=long``.

The long profile must be known before pytest reads its options, so name this folder with it:
``pytest tests/properties --hypothesis-profile=long``.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Fixtures here hold no state that an example could leave behind.
COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}

settings.register_profile("ci", derandomize=True, max_examples=50, database=None, **COMMON)
settings.register_profile("long", max_examples=3000, **COMMON)
settings.load_profile("ci")
