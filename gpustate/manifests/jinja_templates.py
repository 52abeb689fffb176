"""Objects whose text is a file in ``data``: plain YAML, or a jinja2 template of it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Any

import yaml

Json = dict[str, Any]


def text(name: str) -> str:
    """A file of ``data``."""
    return (resources.files("gpustate.manifests") / "data" / name).read_text("utf-8")


def objects(name: str, **values: Any) -> Iterator[Json]:
    """The objects of a file; with values it is a template."""
    if not values:
        content = text(name)
    else:
        import jinja2  # not above: most commands render nothing

        environment = jinja2.Environment(
            loader=jinja2.FunctionLoader(text),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        content = environment.get_template(name).render(values)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    yield from (item for item in yaml.load_all(content, Loader=loader) if item)
