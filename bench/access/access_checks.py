"""Measures how long the authorizer takes to say whether a client may do something.

    python -m bench.access.access_checks --rules 100000

One line per kind of question, in microseconds of CPU time, the least of five rounds: `cached` is a verdict that the
session keeps, as each partition of a Produce or Fetch request asks for it; `session` is what every request pays before;
`judged` is the first question about a topic, among as many rules as are given, half of them prefixes of two hundred
different lengths; `some topic` is what an idempotent producer asks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from mainstem.ports import Session
from mainstem.security.acls.acl import Acl, Operation, PatternType, Permission, ResourceKind
from mainstem.security.acls.acl_table import AclTable
from mainstem.security.acls.authorizer import Authorizer
from mainstem.security.acls.config import AuthorizerConfig

USERS = 1_000
LENGTHS = 200
ROUNDS = 5


def table_of(rules: int) -> AclTable:
    """Every user has as many rules for topics of its own as for prefixes."""
    table = AclTable()
    for number in range(rules):
        prefixed = number % 2
        name = f"team{number}-" + "x" * (number // 2 % LENGTHS) if prefixed else f"topic-{number}"
        pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
        user = f"User:{number // 2 % USERS}"
        table.add(Acl(ResourceKind.TOPIC, name, pattern, user, "*", Operation.WRITE, Permission.ALLOW))
    return table


def microseconds(ask: Callable[[], object], times: int) -> float:
    rounds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(times):
            ask()
        rounds.append(time.process_time() - begun)
    return min(rounds) / times * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="What access checks cost.")
    parser.add_argument("--rules", type=int, default=100_000)
    table = table_of(parser.parse_args().rules)
    authorizer = Authorizer(AuthorizerConfig(enabled=True), lambda: table, lambda: 0.0)
    session = Session("10.0.0.1", 1, 1, principal="User:0")
    may_write = authorizer.of(session).question(Operation.WRITE, ResourceKind.TOPIC)
    long_name = "team1-" + "x" * (LENGTHS + 20)
    question = ("User:0", "10.0.0.1", Operation.WRITE, ResourceKind.TOPIC)
    print(f"cached      {microseconds(lambda: may_write('topic-0'), 500_000):8.3f}")
    print(f"session     {microseconds(lambda: authorizer.of(session), 200_000):8.3f}")
    print(f"judged      {microseconds(lambda: authorizer.decide(*question, 'topic-0'), 10_000):8.3f}")
    print(f"judged long {microseconds(lambda: authorizer.decide(*question, long_name), 10_000):8.3f}")
    print(f"some topic  {microseconds(lambda: authorizer.decide_any(*question), 1_000):8.3f}")


if __name__ == "__main__":
    main()
