"""Settings: precedence, every kind of refusal, how limits relate, and the guide that is made from the table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import config
from headwater.cli.main import guide, toml_lines
from headwater.config import KIB, MIB, TABLE, BadSettings, Settings, load, resolve

GUIDE = Path(__file__).parents[1] / "docs/guides/configuration.md"


def refused(
    flags: dict[str, object] | None = None,
    environ: dict[str, str] | None = None,
    path: Path | None = None,
) -> list[str]:
    with pytest.raises(BadSettings) as caught:
        load(flags or {}, environ or {}, path)
    return [str(problem) for problem in caught.value.problems]


def toml(directory: Path, text: str) -> Path:
    path = directory / "headwater.toml"
    path.write_text(text)
    return path


def test_nothing_given_is_the_defaults() -> None:
    assert load({}, {}, None) == Settings()
    assert Settings().log_file_bytes == 128 * MIB
    assert Settings().listen_address == ("127.0.0.1", 4437)


def test_the_defaults_pass_their_own_bounds() -> None:
    given_all = {setting.name: setting.default for setting in TABLE if setting.name != "data"}
    assert load(given_all, {}, None) == Settings()


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().listen = "0.0.0.0:1"  # type: ignore[misc]


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    path = toml(tmp_path, 'log_level = "error"\nconnections_max = 3\ndisk_sync_ms = 4\n')
    environ = {"HEADWATER_LOG_LEVEL": "warning", "HEADWATER_CONNECTIONS_MAX": "2"}
    found = resolve({"log_level": "debug", "memory": None}, environ, path)
    assert (found.settings.log_level, found.sources["log_level"]) == ("debug", "--log-level")
    assert (found.settings.connections_max, found.sources["connections_max"]) == (2, "HEADWATER_CONNECTIONS_MAX")
    assert (found.settings.disk_sync_ms, found.sources["disk_sync_ms"]) == (4, f"{path}: disk_sync_ms")
    assert (found.settings.memory, found.sources["memory"]) == (False, "default")


def test_the_file_may_be_named_by_the_environment_and_the_flag_wins(tmp_path: Path) -> None:
    named = toml(tmp_path, "connections_max = 5")
    assert load({}, {"HEADWATER_CONFIG": str(named)}, None).connections_max == 5
    other = tmp_path / "other.toml"
    other.write_text("connections_max = 6")
    assert load({}, {"HEADWATER_CONFIG": str(named)}, other).connections_max == 6


def test_variables_of_others_and_of_the_client_are_left_alone() -> None:
    environ = {"HEADWATER_URL": "http://elsewhere", "PATH": "/bin", "HEADWATER": "x"}
    assert load({}, environ, None) == Settings()


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("65536", 65536), ("64KiB", 64 * KIB), ("64 kib", 64 * KIB), ("1_048_576", MIB), ("1MiB", MIB), ("4096B", 4096)],
)
def test_sizes_are_read_with_units(text: str, size_bytes: int, tmp_path: Path) -> None:
    assert load({"write_buffer_bytes_max": text}, {}, None).write_buffer_bytes_max == size_bytes
    assert load({}, {"HEADWATER_WRITE_BUFFER_BYTES_MAX": text}, None).write_buffer_bytes_max == size_bytes
    path = toml(tmp_path, f'write_buffer_bytes_max = "{text}"')
    assert load({}, {}, path).write_buffer_bytes_max == size_bytes


@pytest.mark.parametrize("text", ["64MB", "64M", "1.5GiB", "-1", "MiB", "١", "1__0", "9" * 400, "64MiB extra"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    [problem] = refused({"body_bytes_max": text})
    assert problem.startswith(f"--body-bytes-max: {text!r} is not a size; write bytes as a whole number, or KiB")


@pytest.mark.parametrize("text", ["true", "1", "Yes", "on"])
def test_switches_are_turned_on_by_the_environment(text: str) -> None:
    assert load({}, {"HEADWATER_MEMORY": text}, None).memory is True


def test_a_switch_of_the_file_is_turned_off_by_its_flag(tmp_path: Path) -> None:
    assert load({"memory": False}, {}, toml(tmp_path, "memory = true")).memory is False


def test_every_problem_of_every_layer_is_reported_together(tmp_path: Path) -> None:
    path = toml(tmp_path, 'log_lvl = "info"\nconnections_max = "many"\nmemory = "true"\n')
    environ = {"HEADWATER_DURABILITY": "forever", "HEADWATER_DISK_SYNC": "5"}
    problems = refused({"listen": "nowhere", "head_bytes_max": "1"}, environ, path)
    assert problems == [
        f"{path}: log_lvl: no such setting; did you mean log_level?",
        f"{path}: connections_max: 'many' is not a whole number; write a plain number such as 20000",
        f"{path}: memory: 'true' is neither true nor false; write true or false",
        "HEADWATER_DISK_SYNC: no such setting; did you mean HEADWATER_DISK_SYNC_MS?",
        "HEADWATER_DURABILITY: 'forever' is not one of its values; choose one of fsync, disk, memory",
        "--listen: 'nowhere' has no port from 0 to 65535 at its end; "
        "write HOST:PORT such as 127.0.0.1:4437 or [::1]:4437",
        "--head-bytes-max: 1 is too low; the least is 1KiB",
    ]


def test_a_bad_value_is_refused_even_where_a_good_one_overrides_it() -> None:
    [problem] = refused({"log_level": "debug"}, {"HEADWATER_LOG_LEVEL": "loud"})
    assert problem.startswith("HEADWATER_LOG_LEVEL: 'loud'")


def test_a_name_near_to_none_is_refused_with_where_to_look() -> None:
    assert refused({}, {"HEADWATER_ZZZ": "1"}) == [
        "HEADWATER_ZZZ: no such setting; remove it; `headwater config docs` lists every setting"
    ]


def test_a_variable_in_the_wrong_case_is_refused_with_the_right_one() -> None:
    assert refused({}, {"HEADWATER_listen": "127.0.0.1:1"}) == [
        "HEADWATER_listen: no such setting; did you mean HEADWATER_LISTEN?"
    ]


@pytest.mark.parametrize("key", ["log-level", "Log_Level", "loglevel"])
def test_a_misspelt_key_of_the_file_is_told_the_right_one(key: str, tmp_path: Path) -> None:
    [problem] = refused(path=toml(tmp_path, f'{key} = "info"'))
    assert problem.endswith("no such setting; did you mean log_level?")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("connections_max = 1.5", "1.5 is not a whole number"),
        ("connections_max = true", "True is not a whole number"),
        ("idle_timeout_ms = '5s'", "'5s' is not a whole number of milliseconds"),
        ("listen = 4437", '4437 is not text; write it in quotes: listen = "127.0.0.1:4437"'),
        ("memory = 1", "1 is neither true nor false"),
        ("log_level = ['info']", "['info'] is not text"),
        ("[data]\nx = 1", "{'x': 1} is not text"),
        ("body_bytes_max = 1979-05-27", "is not a size"),
        ("cors_origin = ''", "is empty; give a value"),
    ],
)
def test_the_wrong_type_in_the_file_is_refused(text: str, says: str, tmp_path: Path) -> None:
    [problem] = refused(path=toml(tmp_path, text))
    assert says in problem


def test_a_file_that_is_missing_or_no_toml_is_refused_beside_other_problems(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    problems = refused({"log_level": "loud"}, {"HEADWATER_CONFIG": str(missing)})
    assert problems[0].startswith(f"HEADWATER_CONFIG: cannot read {missing}: No such file")
    assert len(problems) == 2
    [problem] = refused(path=toml(tmp_path, "listen = "))
    assert "is not TOML" in problem
    path = tmp_path / "binary.toml"
    path.write_bytes(b"listen = \xff")
    [problem] = refused(path=path)
    assert problem.startswith(f"{path}: is not TOML")


@pytest.mark.parametrize("setting", [row for row in TABLE if row.kind in ("size", "whole")], ids=lambda row: row.name)
def test_bounds_are_inclusive_and_beyond_them_is_refused(setting: config.Setting) -> None:
    for value in (setting.low - 1, setting.high + 1):
        problems = refused({setting.name: value})
        assert problems[0].startswith(f"{setting.flag}: {value} is too ")
    for value in (setting.low, setting.high):
        try:
            assert getattr(load({setting.name: value}, {}, None), setting.name) == value
        except BadSettings as bad:  # A bound may break a relation with another default, never its own bound.
            assert all(f"{setting.name} = " in problem.where for problem in bad.problems)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"sse_keepalive_ms": 60_000}, "sse_keepalive_ms must be below sse_lifetime_ms"),
        ({"hot_bytes_max": MIB}, "read_bytes_max must not exceed hot_bytes_max"),
        ({"body_bytes_max": 128 * MIB}, "body_bytes_max plus 1MiB must fit log_file_bytes"),
        ({"body_bytes_max": 127 * MIB + 1}, "body_bytes_max plus 1MiB must fit log_file_bytes"),
        ({"log_file_bytes": 40 * MIB}, "body_bytes_max plus 1MiB must fit log_file_bytes"),
        ({"s3p_append_bytes_max": 128 * MIB}, "s3p_append_bytes_max plus 1MiB must fit log_file_bytes"),
        ({"s3p_count_max": 99}, "s3p_count_default must not exceed s3p_count_max"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(flags: dict[str, object], says: str) -> None:
    [problem] = refused(flags)
    assert says in problem
    [name] = flags
    assert f"(--{name.replace('_', '-')})" in problem
    assert "(default)" in problem


def test_limits_of_a_door_that_is_off_contradict_nothing() -> None:
    settings = load({"s3p": "off", "s3p_append_bytes_max": 128 * MIB, "s3p_count_max": 99}, {}, None)
    assert settings.s3p_address is None


def test_limits_that_just_fit_are_allowed() -> None:
    flags: dict[str, object] = {
        "body_bytes_max": 127 * MIB,
        "read_bytes_max": MIB,
        "hot_bytes_max": MIB,
        "sse_keepalive_ms": 59_999,
    }
    assert load(flags, {}, None).body_bytes_max == 127 * MIB


def test_memory_contradicts_a_data_directory_that_was_given() -> None:
    [problem] = refused({"memory": True}, {"HEADWATER_DATA": "/somewhere"})
    assert problem.startswith("--memory and HEADWATER_DATA: memory keeps nothing")
    assert load({"memory": True}, {}, None).memory


def test_a_broken_value_is_not_also_reported_as_a_contradiction() -> None:
    assert len(refused({"sse_keepalive_ms": "x", "sse_lifetime_ms": 20})) == 1


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:4437", ("::1", 4437)),
        ("localhost:65535", ("localhost", 65535)),
        ("streams.example.com:80", ("streams.example.com", 80)),
        ("node-1:80", ("node-1", 80)),
    ],
)
def test_listen_is_host_and_port(listen: str, address: tuple[str, int]) -> None:
    assert load({"listen": listen, "auth": "on"}, {}, None).listen_address == address


@pytest.mark.parametrize(
    "listen",
    [
        *("4437", ":4437", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:4_4", "127.0.0.1.5:80"),
        *("999.0.0.1:80", "::1:4437", "[::1]", "[nope]:1", "*:1", "-x:80", "a b:1", "a\nb:80", "http://127.0.0.1:80"),
    ],
)
def test_a_listen_address_that_is_none_is_refused(listen: str) -> None:
    [problem] = refused({"listen": listen})
    assert problem.startswith("--listen: ")
    [problem] = refused({"s3p": listen})
    assert problem.startswith("--s3p: ")


def test_the_s3p_address_is_read_as_the_listen_address_is_and_may_be_off() -> None:
    assert Settings().s3p_address == ("127.0.0.1", 4438)
    assert load({"s3p": "[::1]:0"}, {}, None).s3p_address == ("::1", 0)
    assert load({}, {"HEADWATER_S3P": "off"}, None).s3p_address is None
    assert len(refused({"listen": "off"})) == 1
    [problem] = refused({"s3p": "on"})
    assert problem.endswith("write HOST:PORT such as 127.0.0.1:4438 or [::1]:4437, or off")


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_a_loopback_address_gives_no_warning(listen: str) -> None:
    assert resolve({"listen": listen}, {}, None).warnings == []


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.com:1"])
def test_an_address_others_can_reach_is_refused_without_authentication(listen: str) -> None:
    for auth in ("auto", "off"):
        with pytest.raises(BadSettings) as bad:
            resolve({"auth": auth}, {"HEADWATER_LISTEN": listen}, None)
        [problem] = map(str, bad.value.problems)
        assert problem.startswith(f"HEADWATER_LISTEN: {listen} can be reached from other machines")
        assert "--auth on" in problem and "--open-to-everyone" in problem
    assert resolve({"auth": "on"}, {"HEADWATER_LISTEN": listen}, None).warnings == []
    [warning] = resolve({"open_to_everyone": True}, {"HEADWATER_LISTEN": listen}, None).warnings
    assert warning.startswith(f"HEADWATER_LISTEN: {listen} can be reached from other machines")
    assert "authentication is off" in warning


def test_an_s3p_address_others_can_reach_is_refused_too() -> None:
    [problem] = refused({"s3p": "0.0.0.0:1"})
    assert problem.startswith("--s3p: 0.0.0.0:1 can be reached from other machines")
    assert load({"s3p": "0.0.0.0:1", "auth": "on"}, {}, None).auth_on


def test_webhooks_to_this_machine_give_a_warning() -> None:
    [warning] = resolve({"webhook_allow_local": True}, {}, None).warnings
    assert "development" in warning


@pytest.mark.parametrize("origin", ["https://app.example.com", "http://localhost:3000", "*", "http://[::1]:80"])
def test_a_web_origin_is_taken(origin: str) -> None:
    assert load({"cors_origin": origin}, {}, None).cors_origin == origin


@pytest.mark.parametrize("url", ["auto", "forwarded", "https://a.io", "http://[::1]:80", "https://a/b/", "http://a/"])
def test_a_public_url_is_taken(url: str) -> None:
    given_all = {"public_url": url, "trusted_proxies": "127.0.0.1"}
    assert load(given_all, {}, None).public_url == url.rstrip("/")


def test_forwarded_needs_proxies_that_are_trusted() -> None:
    [problem] = refused({"public_url": "forwarded"})
    assert problem.startswith("--public-url: ") and "trusted_proxies" in problem


def test_trusted_proxies_are_addresses_and_networks() -> None:
    assert load({"trusted_proxies": " 127.0.0.1, fd00::/8"}, {}, None).trusted_proxies == "127.0.0.1/32,fd00::/8"
    for wrong in ("10.0.0.1/8", "proxy.example", "127.0.0.1,", "none,127.0.0.1"):
        [problem] = refused({"trusted_proxies": wrong})
        assert problem.startswith("--trusted-proxies: ") and "10.0.0.0/8" in problem


def test_several_web_origins_are_taken_and_credentials_go_with_named_ones() -> None:
    origins = "https://a.example, https://b.example"
    found = load({"cors_origin": origins, "cors_credentials": True}, {}, None)
    assert found.cors_origins == ("https://a.example", "https://b.example")
    [problem] = refused({"cors_credentials": True})
    assert problem.startswith("--cors-credentials: ")
    [problem] = refused({"cors_origin": "*,https://a.example"})
    assert problem.startswith("--cors-origin: ")


@pytest.mark.parametrize(
    "url", ["a.example", "ftp://a", "https://", "https://a b", "https://u:p@a", "https://a?x=1", "https://a//b", "yes"]
)
def test_what_is_no_public_url_is_refused(url: str) -> None:
    [problem] = refused({"public_url": url})
    assert problem.startswith("--public-url: ")


@pytest.mark.parametrize("origin", ["example.com", "https://a/b", "https://a\r\nX: y", "https://", "https://ä.example"])
def test_what_is_no_web_origin_is_refused(origin: str) -> None:
    [problem] = refused({"cors_origin": origin})
    assert problem.startswith("--cors-origin: ")


numbers = st.fixed_dictionaries(
    {},
    optional={row.name: st.integers(row.low - 2, row.high + 2) for row in TABLE if row.kind in ("size", "whole")},
)


@given(numbers)
def test_what_is_printed_for_a_setting_reads_back_to_the_same_settings(flags: dict[str, object]) -> None:
    try:
        found = resolve(flags, {}, None)
    except BadSettings:
        return
    environ = {row.variable: row.shown(getattr(found.settings, row.name)) for row in TABLE}
    assert load({}, environ, None) == found.settings


@given(st.dictionaries(st.sampled_from([row.variable for row in TABLE]), st.text(max_size=20), max_size=4))
def test_any_text_in_the_environment_is_settings_or_a_list_of_problems(environ: dict[str, str]) -> None:
    try:
        load({}, environ, None)
    except BadSettings as bad:
        assert bad.problems
        assert all(problem.where and problem.wrong and problem.change for problem in bad.problems)


@pytest.mark.parametrize("flags", [{"data": '/a "b" \\c'}, {"memory": True}, {"body_bytes_max": 1_000_001}])
def test_the_shown_settings_are_a_file_that_gives_the_same_settings(flags: dict[str, object], tmp_path: Path) -> None:
    found = resolve(flags, {}, None)
    path = toml(tmp_path, "\n".join(toml_lines(found)))
    assert load({}, {}, path) == found.settings


def test_the_guide_is_what_the_command_prints() -> None:
    assert GUIDE.read_text() == guide(), "renew it: headwater config docs > docs/guides/configuration.md"


def test_the_guide_names_every_setting_in_all_its_spellings() -> None:
    text = guide()
    for setting in TABLE:
        assert f"| `{setting.name}` | `{setting.flag}` | `{setting.variable}` |" in text


def test_the_client_talks_to_flag_then_variable_then_default() -> None:
    environ = {"HEADWATER_URL": "http://b"}
    assert config.client_url("http://a", environ) == "http://a"
    assert config.client_url(None, environ) == "http://b"
    assert config.client_url(None, {}) == "http://127.0.0.1:4437"
