"""The dashboard's files, the system's state and who is asking, as HTTP has them."""

import gzip
import re
from base64 import b64encode
from hashlib import sha256

import requests

from countersink.web.endpoints.pages import load
from countersink.web.http.answers import PAGE
from tests.web.serving import Web

ELSEWHERE = (
    "",
    "js/",
    "nothing.js",
    "../pages.py",
    "js/../../pages.py",
    "%2e%2e/pages.py",
    "..%2fpages.py",
    "%2e%2e%2f%2e%2e%2f%2e%2e%2fetc/passwd",
    "js%00/app.js",
    "JS/app.js",
    "/etc/passwd",
)


def get(web: Web, path: str, **headers: str) -> requests.Response:
    return requests.get(f"{web.url}{path}", headers=headers, timeout=20, allow_redirects=False)


def test_a_page_names_its_files_by_their_hash_and_they_are_kept_for_ever(shared: Web) -> None:
    page = get(shared, "/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.headers["Cache-Control"] == "no-cache"
    for name, value in PAGE[:-1]:
        assert page.headers[name.decode()].startswith(value.decode())
    paths = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)
    assert len(paths) >= 3
    for path in paths:
        file = get(shared, path)
        assert file.status_code == 200, path
        assert file.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert file.headers["X-Content-Type-Options"] == "nosniff"


def test_what_a_browser_has_is_not_sent_again(shared: Web) -> None:
    for accepted in ("gzip", "identity"):
        first = get(shared, "/", **{"Accept-Encoding": accepted})
        again = {"Accept-Encoding": accepted, "If-None-Match": f'"x", {first.headers["ETag"]}'}
        kept = get(shared, "/", **again)
        assert kept.status_code == 304
        assert get(shared, "/", **again | {"If-None-Match": "*"}).status_code == 304
        # What a 304 says of the page replaces what the browser has.
        assert "Content-Security-Policy" not in kept.headers
    other = {"Accept-Encoding": "gzip", "If-None-Match": first.headers["ETag"]}
    assert get(shared, "/", **other).status_code == 200


def test_a_page_has_only_scripts_in_it_that_its_policy_names(shared: Web) -> None:
    page = get(shared, "/")
    scripts = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    hashes = [b64encode(sha256(one.encode()).digest()).decode() for one in scripts]
    assert len(hashes) == 2
    named = " ".join(f"'sha256-{one}'" for one in hashes)
    assert page.headers["Content-Security-Policy"].endswith(f"; script-src 'self' {named}")


def test_no_page_has_other_script_or_style_in_it_or_asks_another_host() -> None:
    for path, asset in load()[1].items():
        text = asset.body.decode()
        assert gzip.decompress(asset.packed) == asset.body
        if path.endswith(".html"):
            assert len(re.findall("<script>", text)) == len(asset.scripts), path
            text = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
            assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text), path
            assert not re.search(r'(?:src|href|action)="(?!/|#)', text), path
        if path.startswith("js/"):  # a text that spans lines would lose its indentation
            assert not [line for line in text.splitlines() if line.count("`") % 2], path
        if not path.startswith("vendor/"):
            assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), path
            assert "https://" not in text, path
            assert "innerHTML" not in text, path
            assert all(line.count("`") % 2 == 0 for line in text.splitlines()), path


def test_the_licence_of_what_others_wrote_is_there_and_nothing_else_is_served(shared: Web) -> None:
    static = f"/static/{load()[0]}"
    answer = get(shared, f"{static}/vendor/uplot/LICENSE.txt")
    assert answer.text.startswith("The MIT License")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    for path in ELSEWHERE:
        assert get(shared, f"{static}/{path}").status_code in (400, 404), path
    # A page of another version gets none of these files.
    assert get(shared, "/static/0123456789abcdef/js/app.js").status_code == 404


def test_who_is_not_logged_in_is_led_to_the_login(keyed: Web) -> None:
    key = keyed.key("read", counters=["shop.*"], name="shop")
    answer = get(keyed, "/", Accept="text/html")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    assert get(keyed, "/login").status_code == 200
    assert get(keyed, "/v1/whoami").status_code == 401
    who = get(keyed, "/v1/whoami", **{"X-API-Key": key}).json()
    assert who == {
        "key": key.split("_")[1],
        "name": "shop",
        "scopes": ["read"],
        "counters": ["shop.*"],
        "login": False,
        "link": None,
    }
