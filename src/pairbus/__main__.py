"""`python -m pairbus` is the `pairbus` command."""

from pairbus.cli import main

if __name__ == "__main__":
    main()
