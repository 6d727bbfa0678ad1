"""Settings: precedence, and one clear line for every way to get one wrong."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciuic_p2p.config import SETTINGS, load_config, split_host_port
from ciuic_p2p.errors import AddressUnusable, ConfigError

PEER = "/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWNrYBdYqjQZDxc8PGeSkCwFh1qFHFk1TbGrc3hGm4rW9Z"


def profile_of(folder: Path, text: str) -> Path:
    path = folder / "peer.toml"
    path.write_text(text)
    return path


def test_defaults_are_a_whole_configuration() -> None:
    config = load_config({}, None, {})
    assert config.listen == ("/ip4/0.0.0.0/tcp/0",)
    assert config.session_listen == "0.0.0.0:0"
    assert config.http == "127.0.0.1:0"
    assert (config.probe_period_s, config.lanes_per_peer, config.joins, config.token) == (1.0, 2, (), None)
    assert config.lane_mbps is None


def test_flag_beats_environment_beats_profile_beats_default(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, 'name = "from-profile"\nregion = "pp"\nlog_level = "error"\n')
    environ = {"CIUIC_NAME": "from-environment", "CIUIC_REGION": "ee"}
    config = load_config({"name": "from-flag", "region": None}, profile, environ)
    assert (config.name, config.region, config.log_level, config.lanes_per_peer) == ("from-flag", "ee", "error", 2)


def test_an_empty_variable_and_an_empty_list_of_flags_count_as_not_given(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, 'listen = ["/ip4/127.0.0.1/tcp/7"]')
    assert load_config({"listen": ()}, profile, {"CIUIC_LISTEN": " "}).listen == ("/ip4/127.0.0.1/tcp/7",)


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("/ip4/127.0.0.1/tcp/0", "127.0.0.1:0"),
        ("/ip4/1.2.3.4/tcp/4001", "1.2.3.4:4002"),
        ("/ip6/::1/tcp/4001", "[::1]:4002"),
        ("/ip4/1.2.3.4/tcp/65535", "1.2.3.4:0"),
    ],
)
def test_sessions_listen_beside_libp2p(listen: str, expected: str) -> None:
    assert load_config({"listen": (listen,)}, None, {}).session_listen == expected


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nam = 'x'", "nam is not a setting"),
        ("name = 5", "name is wrong; give a text"),
        ("name = 'a b'", "name is wrong; give 1 to 63 letters"),
        ("listen = '/ip4/0.0.0.0/tcp/1'", "listen is wrong; give a list"),
        ("listen = []", "listen is wrong; give at least one"),
        ("listen = ['/ip4/0.0.0.0/udp/1']", "write it as /ip4/0.0.0.0/tcp/4001"),
        ("listen = ['/ip4/300.0.0.0/tcp/1']", "is not a multiaddr"),
        ("joins = ['/ip4/1.2.3.4/tcp/1']", "names no peer"),
        ("joins = ['ciuic']", "is not a multiaddr"),
        ("http = 'localhost'", "127.0.0.1:8080"),
        ("http = 'localhost:70000'", "127.0.0.1:8080"),
        ("probe_period_s = true", "give seconds"),
        ("probe_period_s = '1'", "give seconds"),
        ("lanes_per_peer = 0", "whole number between 1 and 64"),
        ("lane_mbps = 0", "give Mbit/s"),
        ("forward = 'perhaps'", "give true or false"),
        ("forward = 1", "give true or false"),
        ("log_level = 'loud'", "give debug, info"),
        ("token_file = 'absent'", "cannot be read"),
        ("name = ", "is not TOML"),
    ],
)
def test_a_wrong_profile_is_one_line_with_the_file_and_the_remedy(tmp_path: Path, line: str, says: str) -> None:
    profile = profile_of(tmp_path, line)
    with pytest.raises(ConfigError) as raised:
        load_config({}, profile, {})
    assert says in str(raised.value)
    assert raised.value.remedy
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "environ", "names"),
    [
        ({"http": "nowhere"}, {}, "the flag --http"),
        ({}, {"CIUIC_HTTP": "nowhere"}, "the variable CIUIC_HTTP"),
        ({}, {"CIUIC_FORWARD": "perhaps"}, "the variable CIUIC_FORWARD"),
        ({}, {"CIUIC_LANES_PER_PEER": "many"}, "the variable CIUIC_LANES_PER_PEER"),
        ({}, {"CIUIC_JOIN": f"{PEER}, nobody"}, "the variable CIUIC_JOIN"),
    ],
)
def test_the_error_names_where_the_value_came_from(flags: dict[str, Any], environ: dict[str, str], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        load_config(flags, None, environ)


def test_lists_and_numbers_are_read_from_the_environment() -> None:
    environ = {
        "CIUIC_JOIN": f"ciuic1abc,{PEER}",
        "CIUIC_PROBE_PERIOD_S": "0.5",
        "CIUIC_LANES_PER_PEER": "4",
        "CIUIC_LANE_MBPS": "2.5",
    }
    config = load_config({}, None, environ)
    assert config.joins == ("ciuic1abc", PEER)
    assert (config.probe_period_s, config.lanes_per_peer, config.lane_mbps) == (0.5, 4, 2.5)


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("0", False), ("No", False), ("", True)])
def test_whether_to_forward_is_read_from_the_environment(text: str, expected: bool) -> None:
    assert load_config({}, None, {"CIUIC_FORWARD": text}).forward is expected


def test_a_profile_may_say_not_to_forward(tmp_path: Path) -> None:
    assert not load_config({}, profile_of(tmp_path, "forward = false"), {}).forward


def test_a_missing_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml cannot be read"):
        load_config({}, tmp_path / "absent.toml", {})


def test_the_token_comes_from_the_file_beside_the_profile_and_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-token\n")
    config = load_config({}, profile_of(tmp_path, 'token_file = "token"'), {"CIUIC_TOKEN": "other"})
    assert config.token == "secret-token"
    assert "secret" not in repr(config)


def test_the_shipped_profiles_are_legal_and_differ() -> None:
    folder = Path(__file__).parents[2] / "peers"
    configs = [load_config({}, folder / f"node-{region}.toml", {}) for region in ("us", "eu", "as")]
    assert [config.region for config in configs] == ["us", "eu", "as"]
    assert len({config.session_listen for config in configs} | {config.listen[0] for config in configs}) == 6


@settings(max_examples=50)
@given(st.text(max_size=30))
def test_any_text_is_split_into_host_and_port_or_refused(text: str) -> None:
    try:
        host, port = split_host_port(text)
    except AddressUnusable:
        return
    assert host
    assert 0 <= port <= 65535


@settings(max_examples=50)
@given(
    st.sampled_from([row.key for row in SETTINGS]),
    st.one_of(st.integers(), st.floats(), st.booleans(), st.text(), st.lists(st.text())),
)
def test_any_value_of_any_setting_is_taken_or_is_a_configuration_error(key: str, value: object) -> None:
    with suppress(ConfigError):
        load_config({key: value}, None, {})
