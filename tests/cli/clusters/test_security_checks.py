"""The findings of `doctor` on certificates, keys and open ports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from mainstem.cli.check import Check, CheckState
from mainstem.cli.main import run
from mainstem.cli.security_checks import checks
from mainstem.console.config import ConsoleConfig
from mainstem.node.config import NodeConfig
from mainstem.rpc.wire.tls import RpcTlsConfig
from mainstem.security.acls.config import AuthorizerConfig
from mainstem.security.certificates import holders
from mainstem.security.certificates.certificate_directory import CertificateDirectory
from mainstem.security.tokens.config import DelegationTokenConfig
from mainstem.server.config import ServerConfig
from mainstem.server.listener_config import ListenerConfig

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture(autouse=True)
def _no_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSTEM_PROFILES", str(tmp_path / "profiles.toml"))


@pytest.fixture
def tls(tmp_path: Path) -> RpcTlsConfig:
    certs = CertificateDirectory(tmp_path)
    certs.make_authorities("test", NOW)
    made = certs.create(holders.node(1, ("host",)), NOW)
    ca = certs.authority_file(holders.AuthorityKind.NODES)
    return RpcTlsConfig(certificate=str(made.certificate), key=str(made.key), ca=str(ca))


def found(config: NodeConfig, now: datetime = NOW) -> dict[str, Check]:
    return {check.name: check for check in checks(config, now)}


def test_a_node_of_this_host_alone_has_nothing_to_check() -> None:
    assert found(NodeConfig()) == {}


def test_certificates_are_told_before_they_expire(tls: RpcTlsConfig) -> None:
    config = NodeConfig(rpc_tls=tls)
    names = ["rpc_tls.certificate", "rpc_tls.ca", "rpc_tls.key"]
    assert [(name, check.state) for name, check in found(config).items()] == [(name, CheckState.OK) for name in names]
    for days, state in ((336, CheckState.WARNING), (364, CheckState.WARNING), (366, CheckState.FAILED)):
        then = found(config, NOW + timedelta(days=days))
        assert then["rpc_tls.certificate"].state is state, days
        assert "mainstem cert renew" in then["rpc_tls.certificate"].advice
        assert then["rpc_tls.ca"].state is CheckState.OK


def test_the_first_to_expire_of_a_file_counts(tls: RpcTlsConfig) -> None:
    """A file of authorities may hold several."""
    file = Path(tls.ca)
    file.write_bytes(file.read_bytes() + Path(tls.certificate).read_bytes())
    assert found(NodeConfig(rpc_tls=tls), NOW + timedelta(days=350))["rpc_tls.ca"].state is CheckState.WARNING


def test_files_that_are_missing_or_not_readable_as_such(tls: RpcTlsConfig) -> None:
    Path(tls.certificate).unlink()
    Path(tls.key).unlink()
    Path(tls.ca).write_text("nonsense")
    then = found(NodeConfig(rpc_tls=tls))
    assert {name: check.state for name, check in then.items()} == {
        "rpc_tls.certificate": CheckState.FAILED,
        "rpc_tls.key": CheckState.FAILED,
        "rpc_tls.ca": CheckState.FAILED,
    }


def test_keys_that_others_can_read(tls: RpcTlsConfig) -> None:
    for mode, state in ((0o600, CheckState.OK), (0o400, CheckState.OK), (0o640, CheckState.WARNING)):
        Path(tls.key).chmod(mode)
        assert found(NodeConfig(rpc_tls=tls))["rpc_tls.key"].state is state
    assert "chmod 600" in found(NodeConfig(rpc_tls=tls))["rpc_tls.key"].advice


def test_ports_that_anybody_reaches(tls: RpcTlsConfig) -> None:
    open_everywhere = NodeConfig(listen=("0.0.0.0:9092", "127.0.0.1:9094"), http="0.0.0.0:9080", rpc="[::]:9093")
    everywhere = found(open_everywhere)
    assert {name: check.state for name, check in everywhere.items()} == dict.fromkeys(
        ("open kafka", "open http", "open rpc"), CheckState.FAILED
    )
    assert "0.0.0.0:9092" in everywhere["open kafka"].found
    assert "--allow-open http" in everywhere["open http"].advice
    allowed = found(msgspec.structs.replace(open_everywhere, allow_open=("kafka", "http", "rpc")))
    assert {check.state for check in allowed.values()} == {CheckState.WARNING}
    assert "open rpc" not in found(NodeConfig(rpc="[::]:9093", rpc_tls=tls))


def test_passwords_that_anybody_on_the_way_reads() -> None:
    listener = ListenerConfig(listen="0.0.0.0:9094", protocol="SASL_PLAINTEXT")
    check = found(NodeConfig(server=ServerConfig(listeners={"OUTSIDE": listener})))["open passwords"]
    assert check.state is CheckState.WARNING
    assert "encrypts nothing" in check.found


def test_visitors_over_http(tls: RpcTlsConfig) -> None:
    asks = NodeConfig(http="0.0.0.0:9080", console=ConsoleConfig(users=True))
    assert list(found(asks)) == ["open passwords"]
    over_tls = ConsoleConfig(users=True, certificate=tls.certificate, key=tls.key)
    assert list(found(NodeConfig(http="0.0.0.0:9080", console=over_tls))) == ["console.certificate", "console.key"]


def test_listeners_are_looked_at_like_node_rpc(tls: RpcTlsConfig) -> None:
    listener = ListenerConfig(
        listen="0.0.0.0:9094", protocol="SSL", certificate=tls.certificate, key=tls.key, ca=tls.ca,
        client_auth="required",
    )  # fmt: skip
    config = NodeConfig(server=ServerConfig(listeners={"OUTSIDE": listener}))
    assert list(found(config)) == [f"server.listeners.OUTSIDE.{key}" for key in ("certificate", "ca", "key")]
    assert found(config, NOW + timedelta(days=340))["server.listeners.OUTSIDE.certificate"].state is CheckState.WARNING
    plain = ListenerConfig(listen="0.0.0.0:9094", protocol="PLAINTEXT")
    config = NodeConfig(server=ServerConfig(listeners={"OUTSIDE": plain}))
    assert "server.listeners.OUTSIDE.listen = 0.0.0.0:9094" in found(config)["open kafka"].found


def test_an_authority_of_nodes_and_users_is_named(tls: RpcTlsConfig, tmp_path: Path) -> None:
    """Its file may be another one, and hold others as well."""
    both = tmp_path / "both.pem"
    users = tmp_path / "users-ca.pem"
    both.write_bytes(users.read_bytes() + Path(tls.ca).read_bytes())
    for ca, asks, expected in ((users, True, False), (both, True, True), (both, False, False)):
        listener = ListenerConfig(
            listen="127.0.0.1:0", protocol="SSL", certificate=tls.certificate, key=tls.key, ca=str(ca),
            client_auth="required" if asks else "none",
        )  # fmt: skip
        told = found(NodeConfig(rpc_tls=tls, server=ServerConfig(listeners={"OUTSIDE": listener})))
        assert ("authorities" in told) is expected
        if expected:
            assert told["authorities"].state is CheckState.WARNING
            assert "CN=test nodes is in rpc_tls.ca and in server.listeners.OUTSIDE.ca" in told["authorities"].found


def test_lists_of_revoked_certificates_are_told_before_they_are_old(tls: RpcTlsConfig, tmp_path: Path) -> None:
    certs = CertificateDirectory(tmp_path)
    certs.revoke(certs.create(holders.user("an"), NOW).certificate, NOW)
    file = certs.list_file(holders.AuthorityKind.USERS)
    listener = ListenerConfig(
        listen="127.0.0.1:0", protocol="SSL", certificate=tls.certificate, key=tls.key, client_auth="required",
        ca=str(certs.authority_file(holders.AuthorityKind.USERS)), crl=str(file),
    )  # fmt: skip
    config = NodeConfig(server=ServerConfig(listeners={"OUT": listener}))
    for days, state in ((0, CheckState.OK), (25, CheckState.WARNING), (31, CheckState.WARNING)):
        check = found(config, NOW + timedelta(days=days))["server.listeners.OUT.crl"]
        assert (check.state, "1 certificates are revoked" in check.found) == (state, True), days
    file.write_text("nonsense")
    assert found(config)["server.listeners.OUT.crl"].state is CheckState.FAILED


def test_settings_that_let_in_more_than_most_people_want(tls: RpcTlsConfig, tmp_path: Path) -> None:
    def config(protocol: str, *mechanisms: str, everyone: bool, authorizes: bool) -> NodeConfig:
        over_tls = {"certificate": tls.certificate, "key": tls.key} if protocol == "SASL_SSL" else {}
        listener = ListenerConfig(listen="127.0.0.1:0", protocol=protocol, mechanisms=mechanisms, **over_tls)  # type: ignore[arg-type]
        return NodeConfig(
            server=ServerConfig(listeners={"OUT": listener}),
            authorizer=AuthorizerConfig(enabled=authorizes, allow_everyone_if_no_acl_found=everyone),
        )

    weak = {"open resources", "no authorizer", "plain passwords"}
    for made, expected in (
        (config("SASL_SSL", "PLAIN", everyone=False, authorizes=True), set()),
        (config("SASL_PLAINTEXT", "SCRAM-SHA-256", everyone=False, authorizes=True), set()),
        (config("SASL_PLAINTEXT", "PLAIN", everyone=True, authorizes=True), {"open resources", "plain passwords"}),
        (config("SASL_SSL", "PLAIN", everyone=True, authorizes=False), {"no authorizer"}),
    ):
        assert set(found(made)) & weak == expected
    key = tmp_path / "token-key"
    key.write_text("k" * 32)
    key.chmod(0o640)
    tokens = NodeConfig(delegation_token=DelegationTokenConfig(secret_key_file=str(key)))
    assert found(tokens)["delegation_token.secret_key_file"].state is CheckState.WARNING


def test_profiles_with_secrets_that_others_can_read(tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text('[profiles.a]\nbootstrap = "a:1"\n')
    file.chmod(0o644)
    assert found(NodeConfig()) == {}
    file.write_text('[profiles.a]\n"sasl.password" = "secret"\n')
    assert found(NodeConfig())["profiles"].state is CheckState.WARNING
    file.chmod(0o600)
    assert found(NodeConfig()) == {}


def test_doctor_tells_them(tls: RpcTlsConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node.toml").write_text(
        f'rpc = "0.0.0.0:0"\nhttp = "127.0.0.1:0"\nlisten = ["127.0.0.1:0"]\n[rpc_tls]\n'
        f'certificate = "{tls.certificate}"\nkey = "{tls.key}"\nca = "{tls.ca}"\n'
        f"[server]\n"
    )
    Path(tls.key).chmod(0o644)
    assert run(["doctor", "--config", str(tmp_path / "node.toml")]) == 0
    assert "other users can read it" in capsys.readouterr().out
