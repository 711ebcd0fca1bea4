"""Kafka's numbers of SCRAM mechanisms."""

from __future__ import annotations

from mainstem.model import ScramMechanism

NUMBERS = {ScramMechanism.SHA_256: 1, ScramMechanism.SHA_512: 2}
MECHANISMS = {number: mechanism for mechanism, number in NUMBERS.items()}
