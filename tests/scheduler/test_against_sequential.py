"""Random programs of many instances, compared with the same calls carried out one by one.

The reference below knows only the contract: virtual pages of slots, embeds, calls that take effect
at once. The real side batches across queues, keeps up to two plans in flight, kills instances,
reuses their pages. Whatever it does, every distribution, fill count and error must be the
reference's.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from support.random_programs import Programs

Programs.TestCase.settings = settings(
    max_examples=70, stateful_step_count=60, suppress_health_check=list(HealthCheck)
)
TestPrograms = Programs.TestCase
