"""Which tests of connections run over TLS, too: those that use the fixture `event_loop_of_the_test` or
`transport_of_the_test`."""

from __future__ import annotations

from tests.server.tls.certificates import Authority

OVER_TLS: list[Authority] = []
"""The authority of the test that runs over TLS; empty: it does not."""
