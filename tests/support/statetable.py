"""The table of states in the site's reference: which is proven on what, and how. Run as a file, it prints the page.

Nothing in it is written by hand. Modules of tests on nodes declare what they prove in ``PROVES``: a state's name to
how (``real node``, ``simulated node``, ``real GPU``) and the distributions. A declaration counts only as far as the
module bears it out: it must ask for that state, and start nodes of that distribution. What unit tests read for a
distribution is recorded data, and is found by the names in them.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpustate import presets, registry
from gpustate.core.state import AnyState
from gpustate.errors import GpustateError
from gpustate.policies import load

TOP = Path(__file__).parents[2]
EXAMPLE = "docs/examples/clusterpolicy.yaml"
REAL_NODE, SIMULATED, REAL_GPU, RECORDED = (
    "real node",
    "simulated node",
    "real GPU",
    "golden file only",
)
#: What beats what, in one cell.
HOWS = (REAL_GPU, REAL_NODE, SIMULATED, RECORDED)
ON_NODES = (REAL_GPU, REAL_NODE, SIMULATED)

#: Columns, the names a node test declares, and the words by which a unit test names the distribution.
DISTRIBUTIONS = {
    "Debian 12": ("debian12", r"debian12|bookworm"),
    "Debian 13": ("debian13", r"debian13|trixie"),
    "Ubuntu": ("ubuntu", r"ubuntu"),
    "RHEL, Rocky, Alma": ("rhel", r"rhel|rocky|alma"),
    "SUSE": ("suse", r"\bsles|suse"),
    "Amazon Linux": ("amazon", r"amzn|amazon"),
}
#: Fixtures and images of the lab, and the distribution of the node.
STARTS = {
    "debian12": r"node12|lab: Lab|fresh_lab|debian12",
    "debian13": r"node13|fresh_lab|debian13|lab\.nodes",
    "ubuntu": r"ubuntu",
    "rhel": r"rhel|rocky",
    "suse": r"sles|suse",
    "amazon": r"amzn|amazon",
}


#: Nodes of these answer as the distribution on a root of Debian.
ON_DEBIAN = ("ubuntu", "rhel", "suse", "amazon")


@dataclass
class Row:
    """One state."""

    state: str
    cells: dict[str, str] = field(default_factory=dict)
    tests: set[str] = field(default_factory=set)  # modules that prove it on nodes

    def take(self, column: str, how: str) -> None:
        """The better of two proofs."""
        was = self.cells.get(column)
        if was is None or HOWS.index(how) < HOWS.index(was):
            self.cells[column] = how

    @property
    def blank(self) -> bool:
        """Nothing proves it anywhere."""
        return not self.cells


class Unproven(AssertionError):
    """A declaration that its module does not bear out."""


def declared(module: Path) -> dict[str, tuple[str, ...]]:
    """``PROVES`` of a module; empty when it declares nothing."""
    for node in ast.parse(module.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "PROVES":
            found: dict[str, tuple[str, ...]] = ast.literal_eval(node.value)
            return found
    return {}


def without_declaration(module: Path) -> str:
    """The text of a module apart from ``PROVES``."""
    text = module.read_text("utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "PROVES":
            lines = text.splitlines()
            return "\n".join([*lines[: node.lineno - 1], *lines[node.end_lineno or node.lineno :]])
    return text


def check(module: Path, state: str, said: tuple[str, ...]) -> None:
    """Refuse a declaration that the module does not bear out."""
    where = f"{module.relative_to(TOP)}: PROVES[{state!r}]"
    how, *distributions = said
    if state not in registry.names():
        raise Unproven(f"{where}: there is no such state")
    if how not in ON_NODES:
        raise Unproven(f"{where}: {how!r} is none of {', '.join(ON_NODES)}")
    text = without_declaration(module)
    if state not in asked_for(text):
        raise Unproven(f"{where}: no test there asks for that state")
    for one in distributions:
        if one not in STARTS or not re.search(STARTS[one], text):
            raise Unproven(f"{where}: no test there starts a node of {one}")
    if not distributions:
        raise Unproven(f"{where}: on which distribution?")


def asked_for(text: str) -> set[str]:
    """States a module names, by name, by class, or through the policy it applies."""
    words = set(re.findall(r"[\w-]+", text))
    found = {name for name in registry.names() if words & {name, name.replace("-", "_")}}
    classes = {registry.get(name).__name__: name for name in registry.names()}
    found |= {classes[name] for name in classes.keys() & set(re.findall(r"\w+", text))}
    if EXAMPLE in text:
        found |= example_states()
    if "preset: kubernetes-node" in text:
        found |= {state.name for state in presets.kubernetes_node().states}
    return found


@functools.cache
def example_states() -> set[str]:
    """States of the example ClusterPolicy."""
    return {state.name for state in load(str(TOP / EXAMPLE)).states}


def rows(modules: Iterable[Path] | None = None) -> list[Row]:
    """Every registered state with what is proven of it.

    Raises:
        Unproven: a declaration that its module does not bear out.
    """
    made = {name: Row(name) for name in sorted(registry.names())}
    columns = {name: column for column, (name, _) in DISTRIBUTIONS.items()}
    for module in modules or sorted(
        [*(TOP / "tests/node").glob("test_*.py"), *(TOP / "tests/proof").glob("test_*.py")]
    ):
        for state, said in declared(module).items():
            check(module, state, said)
            made[state].tests.add(module.relative_to(TOP / "tests").as_posix())
            for one in said[1:]:
                simulated = one in ON_DEBIAN and said[0] == REAL_NODE
                made[state].take(columns[one], SIMULATED if simulated else said[0])
    for module in sorted((TOP / "tests/unit/states").glob("test_*.py")):
        text = module.read_text("utf-8")
        for state in asked_for(text):
            if not imports(text, state):
                continue
            if "FakeNode(" in text:  # which answers as Debian 12 unless it is told otherwise
                made[state].take("Debian 12", RECORDED)
            for column, (_, words) in DISTRIBUTIONS.items():
                if re.search(words, text, re.IGNORECASE):
                    made[state].take(column, RECORDED)
    return list(made.values())


def imports(text: str, state: str) -> bool:
    """A module imports the state's own module."""
    name = registry.get(state).__module__.removeprefix("gpustate.states.")
    return (
        re.search(rf"gpustate\.states\.{name.partition('.')[0]}\b", text) is not None
        or re.search(rf"from gpustate\.states import .*\b{name.partition('.')[0]}\b", text)
        is not None
    )


HEAD = """# States, and what proves each

`gpustate policy graph --all` shows their order. How each state is proven, by distribution:

- **real node**: a booted node, and the software the state is about is real; only GPUs are simulated.
- **simulated node**: a booted node with real systemd, sshd and package management; the GPUs, NVIDIA's programs, or the
  runtime itself are simulated ([lab.md](../../lab.md) says which).
- **real GPU**: a node with a GPU in it.
- **golden file only**: decisions and steps are tested against recorded answers of that distribution.
- **–**: nothing is tested for it there.

The last column is where a policy in Python finds it: `containerd.ContainerdHandlerRegistered` is
`from gpustate.states.containerd import ContainerdHandlerRegistered`.

Nodes of Ubuntu, RHEL's family, SUSE and Amazon Linux are roots of Debian that answer as the distribution, with its package manager.
What such a root cannot show:

| distribution | not shown by any test |
| --- | --- |
| Ubuntu | its kernels, AppArmor profiles, snapd, netplan, cloud-init and shim; Ubuntu's patches to apt, DKMS and needrestart; the indexes of its archive (names and relations of drivers are compared with records, [lab.md](../../lab.md#nodes-that-answer-as-ubuntu)); on 22.04 and 26.04 a share of the tests; of 26.04 the driver's packages before branch 595 |
| RHEL, Rocky, Alma | SELinux in enforcing mode and its policy for containers; dracut; BLS entries and grubby; kABI and weak-modules; crypto policies and FIPS; subscription-manager; glibc and systemd of EL 8 to 10; the metadata of real repositories and module streams |
| SUSE | SUSEConnect; transactional-update and read-only roots; snapper's rollback; dracut; supported-module flags of SUSE's kernels; the metadata of real repositories |
| Amazon Linux | as RHEL; versioned repositories (`releasever`), kernel live patching, the repository `nvidia-release` |

Every state keeps the contract of `tests/contract` as well: defaults, a probe that only reads, nothing to do where all is
as desired, for `ensure: present` and `ensure: absent`.

"""


def holds(cls: type[AnyState]) -> str:
    """The first sentence of a state's docstring."""
    words = " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())
    return words.replace("``", "`").replace("|", "\\|")


def page(made: list[Row]) -> str:
    """The whole page, of the rows of all states."""
    columns = list(DISTRIBUTIONS)
    lines = [
        f"| state | what holds | {' | '.join(columns)} | proven on nodes by | in Python |",
        f"| --- |{' --- |' * (len(columns) + 3)}",
    ]
    for row in made:
        cells = [row.cells.get(column, "–") for column in columns]
        tests = ", ".join(f"`{test}`" for test in sorted(row.tests)) or "–"
        cls = registry.get(row.state)
        module = cls.__module__.removeprefix("gpustate.states.").partition(".")[0]
        lines.append(
            f"| [`{row.state}`]({row.state}.md) | {holds(cls)} | {' | '.join(cells)} | {tests} | `{module}.{cls.__name__}` |"
        )
    on_nodes = sum(bool(row.tests) for row in made)
    gpus = sum(REAL_GPU in row.cells.values() for row in made)
    tail = f"\n{len(made)} states: {on_nodes} proven on nodes, {gpus} of them with a real GPU.\n"
    return HEAD + "\n".join(lines) + "\n" + tail


if __name__ == "__main__":
    try:
        print(page(rows()))
    except (GpustateError, Unproven) as error:
        sys.exit(str(error))
