"""Lifecycle events as the marketplace sends them: ordinary bodies, from which each test differs in one thing."""

import json
from typing import Any

from tests.items import ACCOUNT, LICENSE

AGREEMENT = "agmt-0123456789abcdef"
PRODUCT = "product-one"
UPDATED, DEPROVISIONED = "License Updated", "License Deprovisioned"
ENDED, AMENDED, CREATED = "Purchase Agreement Ended", "Purchase Agreement Amended", "Purchase Agreement Created"


def a_body(
    kind: Any = UPDATED,
    time: Any = "2026-11-28T14:20:00Z",
    *,
    license: Any = LICENSE,
    account: Any = ACCOUNT,
    agreement: Any = AGREEMENT,
    end_time: Any = None,
    product: Any = PRODUCT,
    **changes: Any,
) -> str:
    """The body of a message; None leaves a part out."""
    detail = {
        "acceptor": {"accountId": account} if account is not None else None,
        "agreement": {name: v for name, v in (("id", agreement), ("endTime", end_time)) if v is not None},
        "license": {"arn": license} if license is not None else None,
        "product": {"code": product} if product is not None else None,
    }
    content = {
        "version": "0",
        "source": "aws.agreement-marketplace",
        "detail-type": kind,
        "time": time,
        "detail": {name: part for name, part in detail.items() if part},
    }
    return json.dumps({name: value for name, value in {**content, **changes}.items() if value is not None})


def of_agreement(kind: str, time: str, **named: Any) -> str:
    """An event of an agreement, which names neither license nor account."""
    return a_body(kind, time, **{"license": None, "account": None, "product": None, **named})
