"""How a client shows who it is, and the SCRAM credentials that the cluster keeps.

SaslHandshake: which mechanism the client wants. SaslAuthenticate: one token of it, and the answer.
DescribeUserScramCredentials, AlterUserScramCredentials: the users' credentials, without and with their secrets.
"""

from __future__ import annotations

from mainstem.protocol.schema import array, binary, int8, int16, int32, int64, message, nested, string, wire


@message(api_key=17, versions="0-1", flexible="none")
class SaslHandshakeRequest:
    mechanism: str = wire(string)


@message(api_key=17, versions="0-1", flexible="none")
class SaslHandshakeResponse:
    error_code: int = wire(int16)
    mechanisms: tuple[str, ...] = wire(array(string))


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    auth_bytes: bytes = wire(binary)

    def __repr__(self) -> str:
        return "SaslAuthenticateRequest(…)"  # tokens are secrets


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+")
    auth_bytes: bytes = wire(binary)
    session_lifetime_ms: int = wire(int64, "1+", default=0, ignorable=True)


@nested
class ScramUserName:
    name: str = wire(string)


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    users: tuple[ScramUserName, ...] | None = wire(array(ScramUserName), nullable="0+")


@nested
class ScramCredentialInfo:
    mechanism: int = wire(int8)
    iterations: int = wire(int32)


@nested
class DescribedScramUser:
    user: str = wire(string)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+")
    credential_infos: tuple[ScramCredentialInfo, ...] = wire(array(ScramCredentialInfo))


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+")
    results: tuple[DescribedScramUser, ...] = wire(array(DescribedScramUser))


@nested
class ScramDeletion:
    name: str = wire(string)
    mechanism: int = wire(int8)


@nested
class ScramUpsertion:
    name: str = wire(string)
    mechanism: int = wire(int8)
    iterations: int = wire(int32)
    salt: bytes = wire(binary)
    salted_password: bytes = wire(binary)

    def __repr__(self) -> str:
        return f"ScramUpsertion({self.name!r}, …)"  # the rest is secret


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest:
    deletions: tuple[ScramDeletion, ...] = wire(array(ScramDeletion))
    upsertions: tuple[ScramUpsertion, ...] = wire(array(ScramUpsertion))


@nested
class AlteredScramUser:
    user: str = wire(string)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+")


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    results: tuple[AlteredScramUser, ...] = wire(array(AlteredScramUser))
