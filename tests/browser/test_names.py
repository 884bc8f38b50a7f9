"""Names that look like others, or like nothing, or that every object of JavaScript has."""

import re

import requests
from playwright.sync_api import expect

from tests.browser.chromium import UNLOADED, Look, row
from tests.web.serving import Web

PLAIN = ("/home", "a b", "á", "[U+0020]/home", "naïve/日本語/שלום")
"""Shown as they are, but for what would look like an escape."""
HOSTILE = {
    " /home": "[U+0020]/home",
    "/home ": "/home[U+0020]",
    "a  b": "a [U+0020]b",
    "/ho\u200bme": "/ho[U+200B]me",
    "\u202e/emoh": "[U+202E]/emoh",
    "/home\u2066\u2069": "/home[U+2066][U+2069]",
    "/home\n": "/home[U+000A]",
    "\u00a0": "[U+00A0]",
    "a\u0301": "a[U+0301]",
    "\ufeff/home": "[U+FEFF]/home",
    "\u3164": "[U+3164]",
    "/home\U000e0041": "/home[U+E0041]",
    "\u0301x": "[U+0301]x",
    "ho\u00adme": "ho[U+00AD]me",
    "\ufe0f": "[U+FE0F]",
    "[U+0020]/home": "[U+005B]U+0020]/home",
}


def test_no_key_looks_like_another_one(look: Look, filled: Web) -> None:
    for amount, key in enumerate([*PLAIN, *HOSTILE], start=1):
        filled.producer.increment("names", key, amount)
    filled.apply()
    page = look.at("/#/counter/names")
    keys = page.locator(".keys .key")
    expect(keys).to_have_count(len({*PLAIN, *HOSTILE}))
    shown = keys.all_inner_texts()
    assert sorted(shown) == sorted(HOSTILE.get(key, key) for key in {*PLAIN, *HOSTILE})
    keys.get_by_text("[U+202E]/emoh").first.click()
    expect(page.locator(".chip")).to_contain_text("[U+202E]/emoh")
    page.get_by_label("Find keys").fill("\u200b\u200b")
    expect(page.get_by_text("No key has “[U+200B][U+200B]” in it.")).to_be_visible()


def test_counters_of_dots_alone_have_a_page_and_a_path(look: Look, filled: Web) -> None:
    names = (".", "..", "...")
    for amount, name in enumerate(names, start=1):
        filled.producer.increment(name, "a", amount)
    filled.apply()
    page = look.page
    for amount, name in enumerate(names, start=1):
        page.goto("/#/")
        page.locator(row(name)).get_by_role("link").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page.locator(".figure dd > span").nth(2)).to_have_text(str(amount))
        expect(page.locator(".keys li")).to_have_text(re.compile(rf"a–100%{amount}$"))
    for amount, name in enumerate(names, start=1):
        got = requests.get(f"{filled.url}/v1/counters/~{name}/totals?by=total", timeout=20).json()
        assert got["rows"] == [{"total": amount}]
    opened = {"Sec-Fetch-Site": "none"}
    assert requests.get(f"{filled.url}/hit/~../a.gif", headers=opened, timeout=20).ok
    filled.apply()
    assert filled.store.totals.total("..") == 3


INHERITED = ("constructor", "__proto__")


def test_what_objects_inherit_is_a_name_like_any_other(look: Look, filled: Web) -> None:
    page = look.page
    for name in INHERITED:
        page.goto(f"/#/{name}")  # no view: the first one
        expect(page.get_by_role("link", name="ad_clicks")).to_be_visible()
        page.goto(f"/#/counter/{name}")
        expect(page.get_by_role("link", name="All counters").last).to_be_visible()
        filled.producer.increment(name, "a", 5)
    filled.apply()
    for name in INHERITED:
        page.goto(f"/#/counter/signups?by={name}&range=7")
        expect(page.get_by_role("slider")).to_have_attribute("aria-valuemax", "6")
        page.goto(f"/#/counter/{name}")
        expect(page.locator(".figure .now")).to_have_text("5")
    look.excused.append(UNLOADED)
