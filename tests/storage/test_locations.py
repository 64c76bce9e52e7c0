"""Texts of locations and of the places of their keys, and errors in other texts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pairbus.errors import ConfigError
from pairbus.spark.storage.folder import DRAFT_AGE_S, FolderStorage
from pairbus.spark.storage.locations import parse
from pairbus.spark.storage.opening import open_storage
from pairbus.spark.storage.secret import StorageSecret


@pytest.mark.parametrize(
    "written, url, container, path",
    [
        (
            "abfss://staging@contoso.dfs.core.windows.net/streams/orders",
            "https://contoso.blob.core.windows.net",
            "staging",
            "streams/orders/",
        ),
        ("abfss://staging@contoso.dfs.core.windows.net", "https://contoso.blob.core.windows.net", "staging", ""),
        (
            "https://contoso.blob.core.windows.net/staging/a%20b/",
            "https://contoso.blob.core.windows.net",
            "staging",
            "a b/",
        ),
        (
            "https://contoso.dfs.core.chinacloudapi.cn/staging/a",
            "https://contoso.blob.core.chinacloudapi.cn",
            "staging",
            "a/",
        ),
        (
            "http://127.0.0.1:10000/devstoreaccount1/staging/a",
            "http://127.0.0.1:10000/devstoreaccount1",
            "staging",
            "a/",
        ),
    ],
)
def test_every_form_of_a_location_is_read(written: str, url: str, container: str, path: str) -> None:
    """The two names of an account lead to its blob service."""
    found = parse(written)
    assert (found.account_url, found.container, found.path) == (url, container, path)


@pytest.mark.parametrize(
    "written, why",
    [
        ("s3://bucket/staging", "S3 is not supported yet"),
        ("wasbs://staging@contoso.blob.core.windows.net/a", "is not a location that can be used"),
        ("dbfs:/mnt/staging", "is neither the absolute path of a folder nor"),
        ("staging", "is neither the absolute path of a folder nor"),
        ("abfss://contoso.dfs.core.windows.net/a", "is not written as"),
        ("https://example.com/staging", "is not written as"),
        ("https://contoso.blob.core.windows.net/", "is not the name of a container"),
        ("http://contoso.blob.core.windows.net/staging", "write https"),
        ("https://contoso.blob.core.windows.net:x/staging", "is not a location"),
        ("abfss://staging@contoso.dfs.core.windows.net/a/../b", "must not have empty segments"),
    ],
)
def test_a_location_that_cannot_be_used_is_refused(written: str, why: str) -> None:
    """The error comes before any connection."""
    with pytest.raises(ConfigError, match=why):
        open_storage(written)


def test_a_token_in_a_location_is_refused_and_not_shown() -> None:
    """Spark shows options in plans, logs and pages."""
    for written in (
        "https://contoso.blob.core.windows.net/staging?sv=2024&sig=abcdef",
        "https://user:abcdef@contoso.blob.core.windows.net/staging",
    ):
        with pytest.raises(ConfigError, match="a location must hold no") as told:
            open_storage(written)
        assert "abcdef" not in str(told.value)


def test_a_secret_in_place_of_its_place_is_refused_and_not_shown() -> None:
    """The same reason."""
    for text in ("AccountName=contoso;AccountKey=abcdef==", "sv=2024&sig=abcdef", "?sig=abcdef", "env:", "@"):
        with pytest.raises(ConfigError, match="storageCredential: give the place") as told:
            StorageSecret.parse(text, "storageCredential")
        assert "abcdef" not in str(told.value)


def test_without_a_place_the_variable_or_else_the_identity_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decided where the query is planned: a worker that lacks the variable says so."""
    monkeypatch.delenv("PAIRBUS_STORAGE", raising=False)
    assert StorageSecret.parse(None, "o").source == "default"
    monkeypatch.setenv("PAIRBUS_STORAGE", "AccountName=contoso;AccountKey=abcdef==")
    secret = StorageSecret.parse(None, "o")
    assert secret.opens("contoso") == {"account_name": "contoso", "account_key": "abcdef=="}
    with pytest.raises(ConfigError, match="is for account contoso, the location is in fabrikam"):
        secret.opens("fabrikam")
    monkeypatch.delenv("PAIRBUS_STORAGE")
    with pytest.raises(ConfigError, match="nothing in env:PAIRBUS_STORAGE on host"):
        secret.opens("contoso")


def test_what_is_no_secret_of_a_storage_account_is_refused(tmp_path: Path) -> None:
    """A connection string of Service Bus, say."""
    file = tmp_path / "secret"
    file.write_text("Endpoint=sb://contoso/;SharedAccessKeyName=a;SharedAccessKey=b")
    with pytest.raises(ConfigError, match="neither a connection string of a storage account nor a SAS token"):
        StorageSecret.parse(f"@{file}", "o").opens("contoso")


def test_drafts_of_dead_writers_are_removed_by_a_list(tmp_path: Path) -> None:
    """A list is the only call that looks for drafts; young ones may be in use."""
    storage = FolderStorage(tmp_path)
    storage.put("log/1", b".")
    for name, age_s in ((".2.aa", DRAFT_AGE_S + 60), (".3.bb", 60)):
        (tmp_path / "log" / name).touch()
        then = (tmp_path / "log" / name).stat().st_mtime - age_s
        os.utime(tmp_path / "log" / name, (then, then))
    assert storage.list("log/") == ["1"]
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == [".3.bb", "1"]


def test_nobody_else_can_read_an_object(tmp_path: Path) -> None:
    """An object holds whole messages, as a spool does: mode 0600 with any umask."""
    before = os.umask(0)
    try:
        storage = FolderStorage(tmp_path)
        storage.put("a/1", b".")
        storage.put_new("a/2", b".")
        storage.appender("a/3").append(b".")
        with storage.draft("a/4") as draft:
            draft.publish()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a").iterdir()} == {0o600}
