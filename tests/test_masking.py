"""Buyers' data shows as four stars and four characters (domain: secrecy)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.masking import digest, licence_in, mask, mask_text

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
    "no such licence: {}", "'{}'", "({})", '{{"licenseArn": "{}"}}', "[{}]", "{}, and others", "{}; and others", "{}",
])  # fmt: skip
def test_a_licence_in_a_text_is_masked(arn, words):
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
    ("an aggregate of licence ****cdef breaks the contract", "****cdef"),
    ("product of licence ****: refused", "****"),
    (f"arn:aws:sns:us-east-1:{ACCOUNT}:x refuses arn:aws:license-manager::{ACCOUNT}:license:l-0123abcd.", "****abcd"),
    (f"account ****4321 of {ACCOUNT}", None),
    ("which licences are deprovisioning is not known", None),
])  # fmt: skip
def test_the_licence_that_a_text_names(text, named):
    assert licence_in(text) == named


@pytest.mark.parametrize(
    "text", ["x444455556666", "444455556666abc", "tenant444455556666", "é444455556666", "\\n444455556666"]
)
def test_an_account_glued_to_letters_is_masked(text):
    assert "444455556666" not in mask_text(text)
