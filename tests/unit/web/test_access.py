"""Whose data a token opens."""

import asyncio
from typing import cast

import pytest

from clotho.cluster.client import ApiClient
from clotho.cluster.credentials import Credentials
from clotho.web import access
from clotho.web.access import LocalAccess, TokenAccess, TooManyPeopleError
from clotho.web.feed import Feed
from rig.fake_api import FakeApi


async def test_key_opens_the_local_page_and_a_code_gives_it_once() -> None:
    local = LocalAccess(Feed(cast(ApiClient, FakeApi())))
    code = local.new_code()
    assert local.reader("wrong") is None
    assert local.reader("") is None
    assert local.exchange("wrong") == ""
    assert local.exchange(code) == local.key
    assert local.exchange(code) == "", "it was used already"
    assert local.reader(local.key) is not None


async def test_each_token_has_data_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MOST_PEOPLE", 2)
    people = TokenAccess(lambda token: Credentials("http://127.0.0.1:1", None, lambda: token))
    try:
        first, second = people.reader("a"), people.reader("b")
        assert first is people.reader("a")
        assert first is not second
        assert people.reader("") is None
        with pytest.raises(TooManyPeopleError):
            people.reader("c")
        await people.forget("b")
        assert people.reader("c") is not None
    finally:
        await people.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
