"""`make release-check TAG=v0.4.0`: checks that the repository has one version everywhere, and is ready for that tag.

Without a tag only the two places of the version are compared.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def problems(root: Path, tag: str | None) -> list[str]:
    """Return the problems, in words."""
    version = str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    found = re.search(r'(?m)^__version__ = "(.*)"$', (root / "src" / "pairbus" / "__init__.py").read_text())
    said = []
    if found is None or found[1] != version:
        said.append(f"pyproject.toml has version {version}, src/pairbus/__init__.py {found[1] if found else 'none'}")
    if tag is None:
        return said
    if tag != f"v{version}":
        said.append(f"the tag is {tag}, and pyproject.toml has version {version}: the tag must be v{version}")
    title = re.search(r"(?m)^## (.*)$", (root / "CHANGELOG.md").read_text())
    if title is None or title[1] != version:
        said.append(f"the first section of CHANGELOG.md is {title[1] if title else 'missing'!r}, not {version!r}")
    samples = root / "tests" / "samples" / ".".join(version.split(".")[:2])
    if not samples.is_dir():
        said.append(f"{samples.relative_to(root)} is missing: python -m tools.write_samples {samples.name}")
    return said


def main() -> int:
    tag = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] else None
    said = problems(ROOT, tag)
    print("\n".join(said) or f"ready{f' for {tag}' if tag else ''}")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
