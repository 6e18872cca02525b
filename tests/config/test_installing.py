"""How people are told to install what is missing."""

import tomllib
from pathlib import Path

from skytune.config.installing import add_extra

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_tells_people_to_fetch_a_package_of_our_name_from_an_index() -> None:
    """There it is somebody else's, or nobody's yet."""
    places = [ROOT / "README.md", *(p for top in ("src", "configs", "docker") for p in (ROOT / top).rglob("*"))]
    read = [p for p in places if p.suffix in (".py", ".md", ".yaml", ".yml") or p.name.startswith("Dockerfile")]
    assert len(read) > 200
    assert [str(p) for p in read if "install 'skytune" in (t := p.read_text()) or 'install "skytune' in t] == []


def test_the_extras_that_are_named_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in ("train", "orchestrate", "aws", "demo", "deepspeed", "wandb"):
        assert extra in extras and add_extra(extra).startswith(f"pip install -c constraints.txt -e '.[{extra}]'")
