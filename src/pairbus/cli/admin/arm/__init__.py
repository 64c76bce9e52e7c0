"""ARM templates: entities read from them and written as them, without I/O. Both ways go over the emulator's format."""
