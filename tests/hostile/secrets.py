"""Secrets that are known again wherever they come out.

Belongs here: recognizable ones, and the search for them. Does not: who says what.
"""

ACCOUNT = "918273645546"
LICENSE = f"arn:aws:license-manager::{ACCOUNT}:license:l-5ec2e75ec2e7beef"
OTHER_ACCOUNT = "192837465564"
OTHER_LICENSE = f"arn:aws:license-manager::{OTHER_ACCOUNT}:license/l-7e110dead7e110aa"
IDENTIFIER = "xK9customerQ7vZ"
PASSWORD = "hUsh-hUsh.s3cr3t"
SECRETS = (ACCOUNT, LICENSE, OTHER_ACCOUNT, OTHER_LICENSE, IDENTIFIER, PASSWORD)


def assert_nothing_leaks(*said: object, secrets: tuple[str, ...] = SECRETS) -> None:
    """No secret stands in what was said, whatever it is."""
    words = "\n".join(part if isinstance(part, str) else repr(part) for part in said)
    found = [secret for secret in secrets if secret in words]
    assert not found, f"{found} in {words[:2000]}"
