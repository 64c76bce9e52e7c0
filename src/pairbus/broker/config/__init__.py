"""The configuration file of a broker, in the JSON of Microsoft's emulator."""
