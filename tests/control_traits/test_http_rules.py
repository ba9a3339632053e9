"""Which hosts and addresses may be reached, and which requests are none."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.api.http.network import HttpPolicy, hidden_addresses, special_range
from pie_control.api.http.request import HEADER_BYTES, REQUEST_BYTES, check_request
from pie_control.errors import ApiError
from pie_py.config.host_rule import HostRule, canonical_host
from pie_py.config.http import HttpConfig

PUBLIC = ("8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001::1")
SPECIAL = {
    "0.0.0.0": "unspecified",
    "127.0.0.1": "loopback",
    "127.9.9.9": "loopback",
    "10.1.2.3": "private",
    "172.16.0.1": "private",
    "192.168.0.1": "private",
    "169.254.169.254": "link-local",
    "100.64.0.1": "carrier-grade NAT",
    "224.0.0.1": "multicast",
    "239.255.255.250": "multicast",
    "192.88.99.1": "6to4",
    "255.255.255.255": "private",
    "::": "unspecified",
    "::1": "loopback",
    "fe80::1": "link-local",
    "fec0::1": "site-local",
    "fd00::1": "private",
    "ff02::1": "multicast",
    "::ffff:8.8.8.8": "IPv4-mapped",
    "::127.0.0.1": "IPv4-compatible",
    "64:ff9b::808:808": "NAT64",
    "64:ff9b:1::1": "NAT64",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2": "Teredo",
    "2002:c0a8:1::": "6to4",
}


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_pass(address: str) -> None:
    assert special_range(ipaddress.ip_address(address)) is None
    HttpPolicy(HttpConfig(allow=("*",))).check_address("h", 80, ipaddress.ip_address(address))


@pytest.mark.parametrize("address", SPECIAL)
def test_special_addresses_do_not(address: str) -> None:
    parsed = ipaddress.ip_address(address)
    name = special_range(parsed)
    assert name is not None
    assert SPECIAL[address] in name
    policy = HttpPolicy(HttpConfig(allow=("*:*",)))
    with pytest.raises(ApiError, match=r"permission-denied: h is .*not public"):
        policy.check_address("h", 80, parsed)


def test_an_allowed_range_does_not_allow_what_hides_in_it() -> None:
    policy = HttpPolicy(
        HttpConfig(allow=("*",), allow_networks=(ipaddress.ip_network("64:ff9b::/96"),))
    )
    policy.check_address("h", 80, ipaddress.ip_address("64:ff9b::808:808"))
    with pytest.raises(ApiError, match=r"10\.0\.0\.1 behind 64:ff9b::a00:1"):
        policy.check_address("h", 80, ipaddress.ip_address("64:ff9b::a00:1"))


def test_denied_ranges_win() -> None:
    networks = {"deny_networks": ("8.8.0.0/16",), "allow_networks": ("64:ff9b::/96",)}
    policy = HttpPolicy(HttpConfig(allow=("*", "8.8.8.8"), **networks))  # type: ignore[arg-type]
    policy.check_address("h", 80, ipaddress.ip_address("8.7.8.8"))
    for address in ("8.8.8.8", "64:ff9b::808:808"):
        with pytest.raises(ApiError, match=r"permission-denied: h is 8\.8\.8\.8.*deny_networks"):
            policy.check_address("h", 80, ipaddress.ip_address(address))


@given(st.ip_addresses(v=4))
def test_transition_forms_never_hide_an_address(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for form in (0xFFFF << 32 | number, (0x64FF9B << 96) | number, 0x2002 << 112 | number << 80):
        outer = ipaddress.IPv6Address(form)
        assert special_range(outer) is not None
        if number > 1:
            assert address in hidden_addresses(outer)


@given(st.ip_addresses())
def test_what_is_not_global_is_special(address: ipaddress.IPv4Address) -> None:
    if not address.is_global:
        assert special_range(address) is not None


@pytest.mark.parametrize(
    ("rule", "yes", "no"),
    [
        ("example.com", [("example.com", 443), ("example.com", 80)], [("example.com", 8080)]),
        ("Example.COM.:8080", [("example.com", 8080)], [("example.com", 80)]),
        ("*.example.com", [("a.b.example.com", 80)], [("example.com", 80), ("notexample.com", 80)]),
        ("*", [("anything", 443)], [("anything", 22)]),
        ("*:*", [("anything", 22)], []),
        ("[::1]:9", [("::1", 9)], [("::1", 80)]),
        ("2001:DB8::1", [("2001:db8::1", 80)], []),
        ("bücher.example", [("xn--bcher-kva.example", 80)], []),
    ],
)
def test_rules(rule: str, yes: list[tuple[str, int]], no: list[tuple[str, int]]) -> None:
    parsed = HostRule.parse(rule)
    assert all(parsed.matches(*pair) for pair in yes)
    assert not any(parsed.matches(*pair) for pair in no)


@pytest.mark.parametrize(
    "text",
    ["", "http://x", "a b", "x:0", "x:99999", "x:y", "10.0.0.0/8", "*.*", "a*b", "*.", "[::1"],
)
def test_rules_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"a rule is HOST|no host"):
        HttpConfig(allow=(text,))


def test_a_rule_that_spells_an_address_out_lets_it_be_private() -> None:
    policy = HttpPolicy(HttpConfig(allow=("127.0.0.1:8000", "localhost:9000", "*:*")))
    loopback = ipaddress.ip_address("127.0.0.1")
    policy.check_address("127.0.0.1", 8000, loopback)
    policy.check_address("localhost", 9000, loopback)
    for host, port in (("127.0.0.1", 8001), ("other", 8000), ("localhost", 8000)):
        with pytest.raises(ApiError):
            policy.check_address(host, port, loopback)


def test_off_unless_allowed() -> None:
    with pytest.raises(
        ApiError, match=r"permission-denied: this server makes no HTTP.*--allow-http"
    ):
        HttpPolicy(HttpConfig()).check_host("example.com", 443)


POLICY = HttpPolicy(HttpConfig(allow=("*",)))


def check(url: str = "http://example.com/", method: str = "GET", **options: object) -> None:
    headers: list[tuple[str, str]] = options.get("headers", [])  # type: ignore[assignment]
    body: bytes = options.get("body", b"")  # type: ignore[assignment]
    check_request(POLICY, method, url, headers, body)


def code_of(url: str) -> str | None:
    try:
        check(url)
    except ApiError as error:
        return error.code
    return None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/",
        "example.com",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "http://",
        "http:///x",
        "http://user:password@example.com/",
        "http://example.com@evil.com/",
        "http://127.0.0.1\\@example.com/",
        "http://exa\nmple.com/",
        "http://exam ple.com/",
        "http://[fe80::1%25eth0]/",
        "http://[::1/",
        "http://example.com:99999/",
        "http://example.com:0/",
        "http://" + "a" * 300 + "/",
        "http://①.com/",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ApiError, match="invalid-argument"):
        check(url)


@pytest.mark.parametrize(
    "header",
    [
        ("", "x"),
        ("a b", "x"),
        ("a:", "x"),
        ("A", "x\r\nB: y"),
        ("A", "x\n"),
        ("A", "\0"),
        ("A", " x"),
        ("Ä", "x"),
        ("Host", "internal"),
        ("content-length", "5"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "close"),
        ("Proxy-Authorization", "x"),
    ],
)
def test_headers_that_are_none(header: tuple[str, str]) -> None:
    with pytest.raises(ApiError, match="invalid-argument"):
        check(headers=[header])


def test_methods_and_sizes() -> None:
    for method in ("CONNECT", "TRACE", "get", "GET /", ""):
        with pytest.raises(ApiError, match="invalid-argument: method"):
            check(method=method)
    with pytest.raises(ApiError, match="limit-exceeded"):
        check(headers=[("A", "x" * HEADER_BYTES)])
    with pytest.raises(ApiError, match="limit-exceeded"):
        check(method="POST", body=b"x" * (REQUEST_BYTES + 1))


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_an_error(text: str) -> None:
    for url in (text, f"http://{text}", f"http://example.com/{text}", f"http://h:{text}"):
        assert code_of(url) in (None, "invalid-argument", "permission-denied", "limit-exceeded")


@given(st.text(max_size=30))
def test_a_canonical_host_stays_the_same(text: str) -> None:
    try:
        host = canonical_host(text)
    except ValueError:
        return
    assert canonical_host(host) == host
