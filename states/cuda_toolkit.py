"""CUDA toolkits beside each other: those of the policy are installed, no driver comes with them.

Each version has a folder of its own, /usr/local/cuda-X.Y. /usr/local/cuda leads to one of them, and
programs that were built with that one expect it to stay.

Surprising: the packages move /usr/local/cuda by themselves: it is an alternative on every distribution, in automatic mode
with the highest version on top, so that installing 13.0 for one user changes the compiler of all. Here it
moves only when the policy says so. And the package ``cuda`` (or ``cuda-X-Y``) brings a driver; only
``cuda-toolkit-X-Y`` does not. Whatever would bring or move a driver is stopped before it starts.

Sources:
    NVIDIA CUDA installation guide for Linux, "Meta Packages" and "Post-installation"; update-alternatives(1);
    package lists of CUDA 12.9 (cuda-toolkit-12-9-config-common makes the alternatives cuda and cuda-12);
    fedora-sysv/chkconfig, alternatives.c (the file of a group: mode, link, then paths with priorities).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from gpustate import Node, Plan, State, Step, diff, ops, shell
from gpustate.core.packages import Offer, StatePackages, fitting_version, not_offered
from gpustate.core.parameter_errors import pattern, together
from gpustate.core.planned import PlannedObservation
from gpustate.formats import alternatives, keyed
from gpustate.formats.rpm import is_rpm
from gpustate.ops import owned_packages

LINK = "/usr/local/cuda"
GROUP = "cuda"
#: Where the link leads that alternatives make of it.
ALTERNATIVE = f"/etc/alternatives/{GROUP}"
#: How the link was before this state first installed something: ``auto`` or ``manual``, and the path.
LINK_RECORD = "/var/lib/gpustate/cuda-link"
_VERSION = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}")

QUERY = shell.load("cuda_toolkit_query", "gpustate.states", GROUP=GROUP, LINK=LINK)
_PROBE = QUERY + shell.load("cuda_toolkit_probe", "gpustate.states")
_NOTE = QUERY + shell.load("cuda_toolkit_record", "gpustate.states", RECORD=LINK_RECORD)
_RESTORE = QUERY + shell.load("cuda_toolkit_restore", "gpustate.states", RECORD=LINK_RECORD)


@dataclass(frozen=True, slots=True)
class Observed:
    """The toolkits of a node, and where /usr/local/cuda leads."""

    packages: Mapping[str, str] = field(default_factory=dict[str, str])  # cuda-toolkit-X-Y: version
    nvcc: Mapping[str, str] = field(default_factory=dict[str, str])  # X.Y: what its nvcc says it is
    link: str | None = None  # where the alternative leads
    link_record: str | None = None
    brought: str | None = None
    choices: tuple[str, ...] = ()
    foreign_link: str | None = None  # /usr/local/cuda is not an alternative, and leads there
    offered: tuple[tuple[str, tuple[str, ...]], ...] = ()
    manager: str = "apt"
    forbidden: Mapping[str, str] = field(default_factory=dict[str, str])  # by foreign pins
    compat: bool = False  # a package of forward compatibility is there


class CudaToolkitsInstalled(State[Observed]):
    """The CUDA toolkits of the policy are there, each with a compiler that answers.

    Args:
        versions: as ``12.9``; each is installed beside the others, none is removed.
        default: where /usr/local/cuda leads; empty: it stays where it is, also when a newer toolkit
            is installed.
        releases: exact package version by toolkit version, ``{"12.9": "12.9.1-1"}``; for those not
            named, what is installed stays, and what is missing comes in the newest that is offered.

    Disruption:
        ``NONE``: nothing that runs is touched.
    """

    name: ClassVar[str] = "cuda-toolkit"
    labels: ClassVar[Mapping[str, str]] = {
        "link": "default CUDA toolkit",
        "nvcc": "compiler",
        "link_record": "record of the default toolkit",
    }
    needs: ClassVar[tuple[str, ...]] = ("preflight",)
    after: ClassVar[tuple[str, ...]] = ("driver",)
    known_after: ClassVar[tuple[str, ...]] = ("driver-repository",)
    predicted: ClassVar[tuple[str, ...]] = ("packages",)

    versions: tuple[str, ...] = Field(default=(), strict=False)
    default: Annotated[
        str, pattern(r"^([0-9]{1,2}\.[0-9]{1,2})?$", "a version such as 12.9, or an empty text")
    ] = ""
    releases: Mapping[str, str] = Field(default_factory=dict)

    @field_validator("versions")
    @classmethod
    def _are_versions(cls, versions: tuple[str, ...]) -> tuple[str, ...]:
        for version in versions:
            if not _VERSION.fullmatch(version):
                raise ValueError(f"{version!r} is not a CUDA version; write it as 12.9")
        return tuple(dict.fromkeys(versions))

    @together
    def _fit(self) -> CudaToolkitsInstalled:
        for version, release in self.releases.items():
            if version not in self.versions:
                raise ValueError(f"releases names {version!r}, which is not among versions")
            if not re.fullmatch(r"[0-9][0-9A-Za-z.+~:-]*", release):
                raise ValueError(f"releases: {release!r} is not a package version")
        return self

    def _names(self) -> tuple[str, ...]:
        return tuple(package_name(version) for version in self.versions)

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        # Of several toolkits any one may be the one that programs of this node are built with.
        alone = self.versions[0] if len(self.versions) == 1 and not planned.unchanged else None
        return {"cuda": alone, "cuda_compat": planned.current("compat")}

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        rows = tuple((package_name(v), self.releases.get(v, "")) for v in self.versions)
        missing = next((package for package, _ in rows if not offer.versions(package)), "")
        return StatePackages(rows, missing=missing)

    def probe(self, node: Node) -> Observed:
        manager = node.facts().package_manager
        packages = node.packages("cuda-toolkit-[0-9]*", "cuda-compat-[0-9]*")
        offered = node.candidates(*self._names()) if self.versions else {}
        output = node.shell(_PROBE).stdout
        record = node.read_text(LINK_RECORD)
        came = node.read_text(owned_packages.record_path(self.name))
        group = alternatives.parse_query(output)
        keys = keyed.lists(output)
        leads = keyed.first(keys, "leads") if "leads" in keys else None
        link = group.value if group else None
        if group and self.default and leads != ALTERNATIVE:
            # What is in force is where the link itself leads, not what the group has.
            link = leads
        compilers = (value.partition(" ") for value in keys.get("nvcc", []))
        return Observed(
            packages={
                p.name: p.version
                for p in packages.values()
                if p.installed and re.fullmatch(r"cuda-toolkit-[0-9]+-[0-9]+", p.name)
            },
            nvcc={version: release for version, _, release in compilers},
            link=link,
            link_record=record,
            brought=came,
            choices=group.choices if group else (),
            foreign_link=leads if group is None or leads == "." else None,
            offered=tuple((n, tuple(c.version for c in rows)) for n, rows in offered.items()),
            forbidden=node.forbidden(*self._names()) if self.versions else {},
            manager=manager,
            compat=any(
                p.installed and p.name.startswith("cuda-compat-") for p in packages.values()
            ),
        )

    def _packages(self, observed: Observed) -> dict[str, str | None]:
        """Package to version; ``None`` where that is not to be had."""
        offered = dict(observed.offered)
        rows = ((package_name(version), self.releases.get(version)) for version in self.versions)
        return {
            name: fitting_version(release, observed.packages.get(name), offered.get(name, ()))
            for name, release in rows
        }

    def _link(self, observed: Observed) -> str | None:
        """Where the link has to lead."""
        if self.default:
            return f"{LINK}-{self.default}"
        words = (observed.link_record or "").split()
        if len(words) == 2 and words[1] in (*observed.choices, observed.link):
            return words[1]
        return observed.link

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return self._without(observed)
        packages = {name: v for name, v in self._packages(observed).items() if v is not None}
        nvcc = dict(observed.nvcc)
        for version in self.versions:
            if package_name(version) in packages and not nvcc.get(version, "").startswith(
                f"{version}."
            ):
                nvcc[version] = f"{version}.x"
        return replace(
            observed,
            packages={**observed.packages, **packages},
            nvcc=_same(observed.nvcc, nvcc),
            link=self._link(observed),
        )

    def _without(self, observed: Observed) -> Observed:
        came = set((observed.brought or "").split())
        removed = {name for name in observed.packages if name in came}
        packages = {name: v for name, v in observed.packages.items() if name not in removed}
        return replace(observed, packages=packages, brought=None, link_record=None)

    def refuse(self, observed: Observed) -> str | None:
        if self.absent:
            return None
        if self.default and observed.foreign_link is not None:
            return (
                f"{LINK} is a "
                f"{'folder' if observed.foreign_link == '.' else 'link to ' + observed.foreign_link} that no package owns (a .run installer?), so it cannot be switched; move it away, or leave default empty"
            )
        choices = (*observed.choices, *(f"{LINK}-{version}" for version in self.versions))
        if self.default and f"{LINK}-{self.default}" not in choices:
            return f"default is {self.default}, which is neither installed nor among versions; name it in versions"
        return None

    def _unavailable(self, observed: Observed) -> str | None:
        packages = {} if self.absent else self._packages(observed)
        advice = "use NVIDIA's repository (state driver-repository), or another version"
        for version in self.versions:
            name = package_name(version)
            if packages.get(name, "") is None:
                offered = dict(observed.offered).get(name, ())
                package = f"{name} {self.releases.get(version, '')}"
                return not_offered(package, offered, advice, observed.forbidden)
        return None

    def plan(self, observed: Observed) -> Plan:
        idle = not (self.absent or self.versions or self.default)
        return diff(
            observed,
            self.desired(observed),
            why={
                "link": "set by the policy"
                if self.default
                else "changed by the package of a newer toolkit; restored",
                "nvcc": "its compiler reports another version",
            },
            notes=("no version is set: nothing to do",) if idle else (),
            refusal=self._unavailable(observed),
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if self.absent:
            if plan.fields & {"packages", "brought"}:
                came = set((observed.brought or "").split())
                roots = tuple(sorted(name for name in observed.packages if name in came))
                yield owned_packages.take_back(self.name, roots, manager=observed.manager)
            if "link_record" in plan.fields:
                yield ops.Run(_RESTORE, f"restore the original {LINK}", timeout=60)
            return
        packages = self._packages(observed)
        missing = tuple(
            (name, version)
            for name, version in packages.items()
            if version is not None and observed.packages.get(name) != version
        )
        if plan.fields & {"packages", "link"}:
            yield ops.Run(_NOTE, f"record the target of {LINK}", timeout=60)
        if missing:
            yield owned_packages.bring(self.name, missing, manager=observed.manager)
        elif "nvcc" in plan.fields:
            yield ops.Run(
                self._mend(observed), "restore missing files of the toolkits", timeout=3600
            )
        if plan.fields & {"packages", "link"}:
            yield ops.Run(self._set(observed), f"verify the target of {LINK}", timeout=60)

    def _mend(self, observed: Observed) -> str:
        """A compiler that is gone or broken comes back with its package."""
        names = " ".join(
            f"cuda-nvcc-{version.replace('.', '-')}"
            for version in self.versions
            if not observed.nvcc.get(version, "").startswith(f"{version}.")
        )
        if is_rpm(observed.manager):
            again = shell.load("cuda_toolkit_reinstall", "gpustate.states", PM=observed.manager)
            return f"set -- {names}\n{again}"
        return f"apt_fetch --reinstall {names} && apt_swap --reinstall {names}"

    def _set(self, observed: Observed) -> str:
        if self.default:
            path = f"{LINK}-{self.default}"
            return (
                f'[ ! -L {LINK} ] || [ "$(readlink {LINK})" = {ALTERNATIVE} ] || rm -f {LINK}\n'
                f"update-alternatives --set {GROUP} {path}; effect set"
            )
        return (
            f"{QUERY}read -r m p <{LINK_RECORD} || :\n"
            "n=$(cuda_query | sed -n 's/^Value: //p')\n"
            f'if [ -n "${{p-}}" ] && [ "$p" != none ] && [ "$n" != "$p" ] && [ -e "$p" ]; then update-alternatives --set {GROUP} "$p"; effect kept; else effect same; fi'
        )


def package_name(version: str) -> str:
    """The package of one toolkit, which brings no driver: ``cuda-toolkit-12-9``."""
    return f"cuda-toolkit-{version.replace('.', '-')}"


def _same(observed: Mapping[str, str], desired: dict[str, str]) -> Mapping[str, str]:
    return observed if dict(observed) == desired else desired
