"""Key templates."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersink.logs import template
from countersink.logs.template import Field
from tests.support.examples import examples


def fill(text: str, **fields: str) -> str:
    def getter(name: str) -> Callable[[Mapping[str, str]], str]:
        return lambda record: record[name]

    return template.fill(template.parse(text), getter)(fields)


def test_fields_and_texts_follow_each_other() -> None:
    assert template.parse("a{host}{path}b") == ("a", Field("host"), Field("path"), "b")
    assert template.fields(template.parse("{a}{b}{a}")) == ("a", "b")
    assert fill("<{host}{path}>", host="h", path="/p") == "<h/p>"
    assert fill("{host}", host="h") == "h"
    assert fill("{ host }", host="h") == "h"


def test_what_a_field_holds_is_no_template() -> None:
    assert fill("{a}{b}", a="{b}", b="{{") == "{b}{{"


def test_double_braces_are_braces() -> None:
    assert fill("{{x}} {a} {{{a}}}", a="1") == "{x} 1 {1}"


def test_the_name_of_a_field_alone_is_that_field() -> None:
    assert template.parse("status") == template.parse("{status}") == (Field("status"),)
    assert template.canonical(" status ") == "{status}"
    assert template.canonical("{a}x") == "{a}x"


@pytest.mark.parametrize("text", ["{{status}}", "{{", "a }} b"])
def test_a_template_without_a_field_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"names no field, .* written \{path\}; access logs have: host, .* path, .*agent$",
    ):
        template.parse(text)


@pytest.mark.parametrize("text", ["{", "}", "a{b", "a}b", "{a{b}}", "{a}}", "{{a}"])
def test_a_brace_without_its_partner_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="has no partner"):
        template.parse(text)


@pytest.mark.parametrize("text", ["{}", "a{ }"])
def test_a_field_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no field"):
        template.parse(text)


@examples(few=25, many=100)
@given(st.text(max_size=30))
def test_any_text_can_be_written(text: str) -> None:
    assert fill("{a}" + text.replace("{", "{{").replace("}", "}}"), a="-") == "-" + text


@examples(few=25, many=100)
@given(st.text("{}ab ", max_size=12))
def test_no_text_raises_anything_but_a_value_error(text: str) -> None:
    try:
        template.parse(text)
    except ValueError:
        pass
