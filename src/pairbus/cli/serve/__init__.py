"""Commands that run or control a server: broker, proxy, dashboard, faults, health, the broker's files."""
