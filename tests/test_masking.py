"""Buyers' data shows as four stars and four characters (domain: secrecy)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.core.errors import MeteringError
from metering_dagster.core.masking import (
    digest,
    license_in,
    markdown_list,
    mask,
    mask_lines,
    mask_names,
    mask_text,
    printable,
)

ACCOUNT = "210987654321"


@pytest.mark.parametrize(("value", "shown"), [
    (None, "<none>"), ("", "<none>"), ("a", "****"), ("abcd", "****"), ("abcde", "****bcde"), (ACCOUNT, "****4321"),
])  # fmt: skip
def test_a_value_shows_its_last_four_characters(value, shown):
    assert mask(value) == shown


def test_a_digest_is_short_and_tells_two_values_apart():
    assert len(digest("l-1", "a")) == 8
    assert digest("l-1", "a") == digest("l-1", "a")
    assert len({digest("l-1", "a"), digest("l-1a"), digest("l-1", "b"), digest("l-", "1a")}) == 4


@pytest.mark.parametrize("arn", [
    "arn:aws:license-manager::123456789012:license:l-0123abcd",
    "arn:aws:license-manager::123456789012:license/l-0123abcd",
    "arn:aws-us-gov:license-manager:us-gov-west-1:123456789012:license:l-0123abcd",
    "arn:aws:license-manager::123456789012:license:l-9999,88=7+6@5.0123abcd",
    "aws:license-manager::123456789012:license:l-0123abcd",  # as some events have it
])  # fmt: skip
@pytest.mark.parametrize("words", [
    "no such license: {}", "'{}'", "({})", '{{"licenseArn": "{}"}}', "[{}]", "{}, and others", "{}; and others", "{}",
])  # fmt: skip
def test_a_license_in_a_text_is_masked(arn, words):
    shown = mask_text(words.format(arn))
    assert shown == words.format("****abcd")
    assert "123456789012" not in shown


@pytest.mark.parametrize("words", ["account {}", "{}#api_calls#2026-11-28T10", "'{}'", "{}_x", "a/{}/b", "{}", "({})"])
def test_an_account_in_a_text_is_masked(words):
    assert mask_text(words.format(ACCOUNT)) == words.format("****4321")


def test_several_are_masked_each():
    assert mask_text(f"{ACCOUNT} and 111122223333 of arn:aws:x:::l-98765") == "****4321 and ****3333 of ****8765"


@pytest.mark.parametrize("text", ["", "nothing to hide", "2026-11-28T10", "12345678901", "1234567890123", "1.0000005"])
def test_other_text_stays(text):
    assert mask_text(text) == text


@given(st.text(), st.text())
def test_no_account_gets_through_between_other_words(before, after):
    assert ACCOUNT not in mask_text(f"{before} {ACCOUNT} {after}")


@pytest.mark.parametrize(("text", "named"), [
    ("an aggregate of license ****cdef breaks the contract", "****cdef"),
    ("product of license ****: refused", "****"),
    (f"arn:aws:sns:us-east-1:{ACCOUNT}:x refuses arn:aws:license-manager::{ACCOUNT}:license:l-0123abcd.", "****abcd"),
    (f"account ****4321 of {ACCOUNT}", None),
    ("which licenses are deprovisioning is not known", None),
])  # fmt: skip
def test_the_license_that_a_text_names(text, named):
    assert license_in(text) == named


@pytest.mark.parametrize(
    "text", ["x444455556666", "444455556666abc", "tenant444455556666", "é444455556666", "\\n444455556666"]
)
def test_an_account_glued_to_letters_is_masked(text):
    assert "444455556666" not in mask_text(text)


@pytest.mark.parametrize(("char", "shown"), [
    ("\x1b", r"\x1b"), ("\x07", r"\x07"), ("\r", r"\r"), ("\n", r"\n"), ("\t", r"\t"), ("\x00", r"\x00"),
    ("\x7f", r"\x7f"), ("\x9b", r"\x9b"), ("\u200b", r"\u200b"), ("\u202e", r"\u202e"), ("\u2066", r"\u2066"),
    ("\ufeff", r"\ufeff"), ("\u2028", r"\u2028"), ("\xa0", r"\xa0"), ("\ud800", r"\ud800"),
    ("\U000e0041", r"\U000e0041"), ("é", "é"), ("日", "日"), ("#", "#"), ("|", "|"), (" ", " "), ("\\", "\\"),
])  # fmt: skip
def test_a_character_that_is_not_meant_to_be_seen_is_escaped(char, shown):
    assert printable(f"a{char}b") == f"a{shown}b"
    assert mask_text(f"a{char}b") == f"a{shown}b"
    assert mask_names(f"a{char}b", ["nobody"]) == f"a{shown}b"
    assert mask(f"123456a{char}b") == f"****6a{shown}b"
    assert str(MeteringError(f"a{char}b")) == f"a{shown}b"


@given(st.text())
def test_what_is_shown_is_printable_and_stays_so(text):
    for shown in (printable(text), mask(text), mask_text(text), str(MeteringError(text))):
        assert shown.isprintable()
        assert printable(shown) == shown


@given(st.text(alphabet="\x00\x1b\n\u202e1"))
def test_an_escape_before_an_account_hides_it_from_no_mask(before):
    assert ACCOUNT not in mask_text(f"{before}\x00{ACCOUNT}\x1b")


def test_lines_stay_lines_where_they_are_ours():
    assert mask_lines(["a\nb", f"of {ACCOUNT}"]) == "a\\nb\nof ****4321"


def test_a_list_in_markdown_holds_no_markup_of_others():
    told = ["![x](https://e.example/t.png)", "<script>", "a|b", "`c`", "next\n# heading", "****4321"]
    assert markdown_list(told).splitlines() == [
        r"- !\[x\](https://e.example/t.png)", r"- \<script>", r"- a\|b", r"- \`c\`", r"- next\\n# heading",
        "- ****4321",
    ]  # fmt: skip
