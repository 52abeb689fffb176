"""What all tests share: how hard Hypothesis tries, and ``--update-golden``.

On a developer's machine it looks for something new each time; with ``CI`` set, as in the pipeline,
it tries the same examples each time, so that a red build is red for everybody.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from gpustate import registry
from gpustate.formats import masking

pytest_plugins = ["labnodes", "shares", "quick", "cycles", "shortpaths", "stublibraries"]

# Runs of the tests are no runs of the person whose machine this is: ``gpustate rollout resume`` must not find them.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="gpustate-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# A busy machine is no reason to fail: what counts is what holds, not how fast.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile(
    "ci", parent=settings.get_profile("default"), derandomize=True, database=None
)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` writes golden files instead of comparing with them; read the diff."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture(autouse=True)
def _secrets_of_this_test() -> None:
    """What one test remembers as a secret is an ordinary word of the next one."""
    masking.forget_all()


@pytest.fixture(autouse=True, scope="module")
def _states_of_this_module() -> Iterator[None]:
    """States that one module takes in from a project of its own are none of the next one's."""
    was = registry._registry
    registry._registry = None
    yield
    registry._registry = was
