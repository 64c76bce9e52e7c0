"""The paired client on two real namespaces: `make azure`."""

NAMES = ("PAIRBUS_AZURE_PRIMARY", "PAIRBUS_AZURE_SECONDARY")
"Variables of the environment: connection strings with the Manage claim, or hosts."
