"""Every API that is advertised, in every version, asked at random with what a node has: each request is answered, in a
form that its version can carry, and none is answered with the error that stands for "this was not foreseen"."""

from __future__ import annotations

import random
import socket
import struct

import pytest
from tests.clients.plausible_requests import PlausibleRequests
from tests.clients.test_bad_input import connection, frame, others_are_served
from tests.harness.serving import Serving

from mainstem.protocol.codec import read, write
from mainstem.protocol.errors import UnwritableMessage
from mainstem.protocol.headers import RequestHeader, parse_response_header, write_request_header
from mainstem.protocol.messages import API_MESSAGES, ProduceRequest

REQUESTS = 2_000


def ask(opened: socket.socket, header: RequestHeader, body: bytes) -> tuple[bytes, int]:
    """The answer, and where its body begins. Raises ConnectionError when there is none."""
    opened.sendall(frame(write_request_header(header) + body))
    with opened.makefile("rb") as answers:
        size = answers.read(4)
        if len(size) < 4:
            raise ConnectionResetError
        answer = answers.read(struct.unpack(">i", size)[0])
    correlation_id, position = parse_response_header(answer, header.api_key, header.api_version)
    assert correlation_id == header.correlation_id
    return answer, position


@pytest.mark.parametrize("seed", range(3))
def test_every_request_has_an_answer_that_was_foreseen(node: Serving, topic: str, seed: int) -> None:
    rng, requests = random.Random(seed), PlausibleRequests(seed)
    keys, number = sorted(API_MESSAGES), 0
    while number < REQUESTS:
        with connection(node) as opened:
            while number < REQUESTS:
                number += 1
                key = rng.choice(keys)
                api = API_MESSAGES[key]
                version = rng.randint(api.version_min, api.version_max)
                request = requests.make(api.request, version)
                if isinstance(request, ProduceRequest) and request.acks == 0:
                    continue  # it is not answered
                try:
                    body = write(request, version)
                except UnwritableMessage:
                    continue
                requests.learn(request)
                try:
                    answer, position = ask(opened, RequestHeader(key, version, number, "anybody"), body)
                except ConnectionError:
                    break
                response = read(api.response, version, answer[position:])
                assert "error_code=-1," not in repr(response), (request, response)
                requests.learn(response)
    assert not node.output_lines("failed unexpectedly")
    others_are_served(node, topic)
