"""Says where the secret of a storage account is: Spark shows options and locations, so they must not hold it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from pairbus.auth.secret_place import is_secret_place, read_secret_of_host
from pairbus.errors import ConfigError
from pairbus.transport.tokens.named_credential import is_credential_name, made_credential

VARIABLE = "PAIRBUS_STORAGE"
"Environment variable that is read when no place is given."


@dataclass(frozen=True, slots=True)
class StorageSecret:
    """The place of a secret. It is read where the storage is used, so the place must exist on every host."""

    source: str
    "`env:NAME` or `@FILE`, which hold a connection string or a SAS token; `default` or `MODULE:CALLABLE`."
    option: str
    "Name of the option in errors."

    @classmethod
    def parse(cls, text: str | None, option: str) -> StorageSecret:
        """Check the form of the text. ConfigError never shows a text that may be a secret."""
        if text is None:
            return cls(f"env:{VARIABLE}" if os.environ.get(VARIABLE) else "default", option)
        if is_credential_name(text) and not text.startswith("env:"):
            return cls(text, option)
        if is_secret_place(text):
            return cls(text, option)
        raise ConfigError(
            f"{option}: give the place of the secret and not the secret itself: 'env:NAME' for an environment variable"
            " or '@FILE' for a file that holds a connection string or a SAS token, 'default' for azure-identity, or"
            " 'MODULE:CALLABLE'"
        )

    def opens(self, account: str) -> Any:
        """Return the secret as azure-storage-blob takes it: a SAS token, a name with a key, or a token credential.

        ConfigError names the option, the place and the host.
        """
        if not is_secret_place(self.source):
            try:
                return made_credential(self.source)
            except ConfigError as error:
                raise ConfigError(f"{self.option}: {error}") from None
        text = read_secret_of_host(self.source, self.option, "nothing")
        if "sig=" in text and ";" not in text:
            return text.removeprefix("?")
        values = {
            name.strip().lower(): value.strip() for name, _, value in (part.partition("=") for part in text.split(";"))
        }
        signature, key = values.get("sharedaccesssignature"), values.get("accountkey")
        if not signature and not key:
            raise ConfigError(
                f"{self.option}: what stands in {self.source} is neither a connection string of a storage account nor"
                " a SAS token"
            )
        named_account = values.get("accountname") or _account_of(values.get("blobendpoint", ""))
        if named_account and named_account != account:
            raise ConfigError(
                f"{self.option}: {self.source} is for account {named_account}, the location is in {account}"
            )
        return signature.removeprefix("?") if signature else {"account_name": account, "account_key": str(key)}


def _account_of(endpoint: str) -> str | None:
    """Return the account of an endpoint such as https://ACCOUNT.blob.core.windows.net; None for other endpoints."""
    match = re.match(r"https://([a-z0-9]{3,24})\.blob\.", endpoint)
    return None if match is None else match[1]
