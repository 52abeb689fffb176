"""The NVIDIA container toolkit is installed as one set, held, and configured for a host driver.

Four packages make the toolkit, and a mixture of versions fails in ways that look like a broken
driver: libnvidia-container asked for symbols it does not have, hooks with unknown flags. They are
installed in one transaction at one exact version, and held, because an unattended upgrade of one of
them is a change nobody planned.

``config.toml`` is read whenever a container is created, so no service restarts. Single keys are set
in it; every other byte stays. The package's own script (``nvidia-ctk config --in-place``) writes the whole
file again whenever the package is configured: values stay, comments and layout go. Paths below
/run/nvidia/driver and /usr/local/nvidia/toolkit are what the GPU Operator's containers leave behind: on a
node with a host driver every container would fail with them, so they are unset.

A program of it that is gone, cannot be executed or is another file than its package brought is put back
from the package at the same version.

Surprising: without ``version`` a set that is installed stays as it is, even when the repository has
a newer one. An upgrade is asked for by naming a version.

Sources:
    NVIDIA/nvidia-container-toolkit, internal/config; installation guide: exact versions of all four.
    NVIDIA/libnvidia-container#248 and others: "undefined symbol" after mixed upgrades.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field

from gpustate import (
    Conflict,
    Disruption,
    Node,
    NodeFacts,
    Plan,
    PolicyError,
    ProbeError,
    State,
    Step,
    diff,
    ops,
    shell,
)
from gpustate.core.packages import Offer, StatePackages, fitting_version, not_offered
from gpustate.core.parameter_errors import together
from gpustate.core.parameter_types import PackageVersion
from gpustate.core.planned import PlannedObservation
from gpustate.documents import Json, JsonView
from gpustate.formats import dpkg, toolkit_config
from gpustate.formats.toolkit_config import CONFIG_PATH
from gpustate.ops.access import make_readable
from gpustate.ops.library import original_path
from gpustate.probes.package_files import PackageFiles
from gpustate.probes.required_programs import (
    RUNTIME_FILES,
    ReferringFilesQuery,
    foreign_default,
    still_referenced,
)

PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
#: Predecessors that wrap the same programs; harmless, and no longer needed.
_OLD_PACKAGES = ("nvidia-docker2", "nvidia-container-runtime")
#: Where the GPU Operator's driver and toolkit containers put their files.
_LEFT_BY_OPERATOR = ("/run/nvidia/driver", "/usr/local/nvidia/toolkit")
#: What containers are started with.
_FILES = PackageFiles(
    "toolkit-files",
    PACKAGES,
    (
        *("/usr/bin/nvidia-ctk", "/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-container-*"),
        *("/usr/lib/*-linux-gnu/libnvidia-container.so.*", "/usr/lib64/libnvidia-container.so.*"),
    ),
)
_NAMED = "nvidia-container-runtime.runtimes"
#: sh: a container runtime that is here without what the toolkit calls by default.
LOW_LEVEL = shell.load("container_toolkit_low_level", "gpustate.states")
#: Programs of it that other files name: handlers of runtimes, and the unit that writes the CDI specification.
_PROGRAMS = ("nvidia-container-runtime", "nvidia-ctk")
#: Where such files lie, and the state that writes them.
_WRITERS = {
    "/containerd/": "containerd",
    "/crio/": "crio",
    "/docker/": "docker",
    "/etc/k0s/": "k0s",
    "/microk8s/": "microk8s",
    "/gpustate-cdi": "cdi",
}
_ORIGINAL = f"{original_path(CONFIG_PATH)}.path"


def _checked_config(config: JsonView) -> JsonView:
    try:
        toolkit_config.set_keys("", config)
    except PolicyError as error:
        raise ValueError(str(error)) from None
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in config.items()
    }


@dataclass(frozen=True, slots=True)
class Observed:
    """The four packages and the one file."""

    versions: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    held: tuple[str, ...] = ()
    config_text: str | None = None
    config_access: str = ""  # its owner and mode, where not all can read it or others can write it
    kept: bool = False  # the file as it was before gpustate is kept for giving it back
    target: str = ""  # version that the policy asks for, of those on offer; empty when none is
    offered: tuple[str, ...] = ()  # versions that all four packages are offered in, newest first
    config_error: str = ""  # the file is no TOML
    old_packages: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()  # files that are not as their packages brought them
    manager: str = "apt"
    referring: tuple[str, ...] = ()  # files that gpustate wrote and that name its programs
    default_in: Mapping[str, str] = field(default_factory=dict[str, str])
    without_runc: str = (
        ""  # a container runtime that is here, while nothing is that the toolkit could call
    )
    docker: bool = False
    forbidden: Mapping[str, str] = field(default_factory=dict[str, str])  # by foreign pins


class ContainerToolkitInstalled(State[Observed]):
    """The container toolkit is installed at one version, held, and its ``config.toml`` has the keys wanted.

    Args:
        version: exact version, ``1.17.8`` or ``1.17.8-1``. Not given: what is installed, or the
            newest that the repositories offer where nothing is.
        hold: keep the packages from being upgraded by anything else; ``false`` releases them.
        mode: ``nvidia-container-runtime.mode`` of ``config.toml``; not given: as it is.
        accept_envvar_when_unprivileged, accept_volume_mounts: whether a container may ask for GPUs
            by NVIDIA_VISIBLE_DEVICES, or by mounts below /var/run/nvidia-container-devices; the keys
            ``accept-nvidia-visible-devices-...``. Not given: as they are.
        config: any key of ``config.toml`` by dotted name, such as
            ``nvidia-container-runtime.mode: cdi``; ``null`` unsets a key.

    Disruption:
        ``NONE``: containers that run are not touched; new ones use the new toolkit.

    Raises:
        PolicyError: the toolkit has no such key, or its value is of another type.
        StepFailed: the packages cannot be installed.
    """

    name: ClassVar[str] = "container-toolkit"
    labels: ClassVar[Mapping[str, str]] = {"versions": "container toolkit version"}
    implies: ClassVar[Mapping[str, str]] = {
        "toolkit-repository": "its packages come from there, where no other repository of the node has them",
        "cdi": "containers get their GPUs by its specification",
    }
    needs: ClassVar[tuple[str, ...]] = ("preflight", "toolkit-repository")
    after: ClassVar[tuple[str, ...]] = ("driver",)
    known_after: ClassVar[tuple[str, ...]] = ("preflight", "toolkit-repository")
    worst: ClassVar[Disruption] = Disruption.NONE
    indispensable: ClassVar[bool] = True
    predicted: ClassVar[tuple[str, ...]] = ("versions",)
    restored: ClassVar[tuple[str, ...]] = ("config_text",)
    stable: ClassVar[tuple[str, ...] | None] = (
        *("versions", "held", "config_text", "config_access", "target", "damaged"),
    )

    version: PackageVersion | None = None
    hold: bool = True
    mode: Literal["auto", "legacy", "cdi", "jit-cdi", "csv"] | None = None
    accept_envvar_when_unprivileged: bool | None = None
    accept_volume_mounts: bool | None = None
    config: Annotated[JsonView, AfterValidator(_checked_config)] = Field(default_factory=dict)

    @together
    def _said_once(self) -> Self:
        twice = sorted(set(self._shorthand()) & set(self.config))
        if twice:
            raise ValueError(f"{', '.join(twice)} is set twice: by its own parameter and in config")
        return self

    def _shorthand(self) -> Json:
        keys = {
            "nvidia-container-runtime.mode": self.mode,
            "accept-nvidia-visible-devices-envvar-when-unprivileged": self.accept_envvar_when_unprivileged,
            "accept-nvidia-visible-devices-as-volume-mounts": self.accept_volume_mounts,
        }
        return {key: value for key, value in keys.items() if value is not None}

    def pinned(self, observed: Observed) -> JsonView:
        pins: Json = {}
        versions = set(observed.versions.values())
        version = versions.pop() if len(versions) == 1 else None
        if version is not None and " " not in version:
            pins["version"] = version
        config = {**self.config, **self._shorthand()}
        if config and not observed.config_error:
            # A key that no policy names stays as it is, so those of this one are set back by name.
            current = toolkit_config.read_keys(observed.config_text or "")
            pins["config"] = {key: current.get(key) for key in config}
            pins |= dict.fromkeys(
                ("mode", "accept_envvar_when_unprivileged", "accept_volume_mounts")
            )
        return pins

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        return offer.one_version(PACKAGES, self.version)

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        packages = node.packages(*PACKAGES, *_OLD_PACKAGES)
        candidates = node.candidates(*PACKAGES)
        text = node.read_text(CONFIG_PATH)
        damaged = node.query(_FILES)
        has_original = bool(node.stats(_ORIGINAL))
        config = None if self.absent else node.stats(CONFIG_PATH).get(CONFIG_PATH)
        referring = node.query(ReferringFilesQuery(_PROGRAMS)) if self.absent else ()
        runtimes = [node.read_texts(pattern) for pattern in RUNTIME_FILES if self.absent]
        lacking = "" if self.absent else node.shell(LOW_LEVEL).stdout.strip()
        versions = {name: _version(packages.get(name)) for name in PACKAGES}
        offered = _common(candidates)
        error = ""
        try:
            named = toolkit_config.read_keys(text or "").get(_NAMED)
            if isinstance(named, list) and not set(named) <= {"runc", "crun", "docker-runc"}:
                lacking = ""  # a site's own, wherever that is
        except ProbeError as problem:
            error = str(problem)
        return Observed(
            versions=versions,
            held=tuple(name for name in PACKAGES if name in packages and packages[name].held),
            config_text=text,
            config_access="" if config is None else config.otherwise(),
            kept=has_original,
            target=self._target(versions, offered),
            offered=offered,
            forbidden=node.forbidden(*PACKAGES),
            config_error=error,
            damaged=damaged,
            manager=facts.package_manager,
            without_runc=lacking,
            docker="docker" in facts.runtimes,
            referring=tuple(path for path in referring if path != CONFIG_PATH),
            default_in={
                path: default
                for texts in runtimes
                for path, text in texts.items()
                if (default := foreign_default(path, text, _PROGRAMS))
            },
            old_packages=tuple(
                name for name in _OLD_PACKAGES if name in packages and packages[name].installed
            ),
        )

    def _target(self, versions: Mapping[str, str | None], offered: tuple[str, ...]) -> str:
        installed = set(versions.values())
        version = next(iter(installed)) if len(installed) == 1 else None
        complete = None if version is None or " " in version else version
        return fitting_version(self.version, complete, offered) or ""

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            # What bytes are restored is known to the node alone: ``kept`` stands for them.
            return replace(
                observed, versions=dict.fromkeys(PACKAGES), held=(), kept=False, damaged=()
            )
        return replace(
            observed,
            versions=dict.fromkeys(PACKAGES, observed.target or None),
            held=PACKAGES if self.hold else (),
            config_text=self._configured(observed.config_text),
            config_access="",
            damaged=(),
        )

    def _configured(self, text: str | None) -> str | None:
        try:
            config = {**self.config, **self._shorthand()}
            changes = {
                key: None for key in _left_by_operator(text or "") if key not in config
            } | config
            edited = toolkit_config.set_keys(text or "", changes)
        except ProbeError:
            return text
        return edited if edited or text is not None else None

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or not observed.config_error:
            return None
        return f"{observed.config_error}; fix or remove the file"

    def _unavailable(self, observed: Observed) -> str | None:
        if self.absent or observed.target:
            return None
        version = f"version {self.version}" if self.version else "the same version"
        pinned = observed.forbidden
        advice = (
            "name that version"
            if observed.offered
            else "allow a version there"
            if pinned
            else "add the state toolkit-repository to the policy, or search for nvidia-container-toolkit with the node's package manager"
        )
        return not_offered(f"the four packages at {version}", observed.offered, advice, pinned)

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        versions, facts = planned.value("versions"), dict[str, object]()
        if not planned.unchanged:
            facts |= {"runtime_mode": self.mode, "toolkit": self.version}
        if isinstance(versions, Mapping):
            facts["toolkit"] = versions.get("nvidia-container-toolkit") or facts.get("toolkit")
            facts["libnvidia_container"] = versions.get("libnvidia-container1")
        return facts

    def conflicts(
        self, policy: JsonView, facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        yield from super().conflicts(policy, facts, observed)
        if observed is not None and self.absent:
            writers = {
                path: state
                for path in observed.referring
                for place, state in _WRITERS.items()
                if place in path
            }
            yield from still_referenced(writers, self.name, policy)
            for path, default in observed.default_in.items():
                if path not in observed.referring or "/containerd/" in path:
                    yield Conflict(
                        f"{path}: {default}, a foreign setting, runs a program of {self.name}, without which no container "
                        "starts: set another default runtime there first, and restart the runtime",
                        with_changes=True,
                    )

    def plan(self, observed: Observed) -> Plan:
        plan = diff(
            observed,
            self.desired(observed),
            why={"kept": f"the original {CONFIG_PATH} is restored"}
            if self.absent
            else {
                "versions": "four packages in one transaction",
                "held": "held back from unattended upgrades",
                "config_access": "rootless containers read it as their user",
            },
            paths={"config_text": CONFIG_PATH, "config_access": CONFIG_PATH},
            notes=()
            if self.absent
            else tuple(f"{name} is superseded by the toolkit" for name in observed.old_packages),
            refusal=self._unavailable(observed),
        )
        return replace(plan, warnings=tuple(self._warnings(observed)))

    def _warnings(self, observed: Observed) -> Iterator[str]:
        if observed.without_runc:
            yield (
                f"{observed.without_runc} is installed without runc or crun: "
                "nvidia-container-runtime has no low-level runtime, and every container that "
                "requests a GPU fails; install runc"
            )
        if not self.absent:
            text = self._configured(observed.config_text) or ""
            yield from toolkit_config.harmful(text, docker=observed.docker)

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if self.absent:
            if "versions" in plan.fields:
                yield ops.remove(
                    observed.manager,
                    tuple(name for name in PACKAGES if observed.versions.get(name)),
                )
            if "kept" in plan.fields:
                yield ops.RestoreOriginal(CONFIG_PATH)
            return
        after = self.desired(observed)
        comes = observed.config_text is None or not any(observed.versions.values())
        if "versions" in plan.fields and comes and not observed.kept:
            # The package writes the file, or rewrites the one that is there, when it is configured.
            yield ops.KeepOriginal(CONFIG_PATH)
        if "config_access" in plan.fields:
            yield make_readable(CONFIG_PATH)
        if "config_text" in plan.fields and after.config_text is not None:
            # Before the installation: the package takes over the values of a file that is there.
            yield ops.PutText(CONFIG_PATH, after.config_text)
        if "versions" in plan.fields:
            pinned = tuple((name, observed.target) for name in PACKAGES)
            written = (CONFIG_PATH,) if "config_text" in plan.fields else ()
            yield ops.install(observed.manager, pinned, hold=self.hold, roll_back=written)
        if "damaged" in plan.fields:
            yield from ops.reinstall(
                observed.manager,
                observed.damaged,
                observed.versions,
                after.versions,
                hold=self.hold,
            )
        if "held" in plan.fields and not (self.hold and "versions" in plan.fields):
            yield ops.hold(observed.manager, PACKAGES, hold=self.hold)


def _version(package: dpkg.Package | None) -> str | None:
    if package is None or package.status[1:2] == "c":
        return None
    return package.version if package.installed else f"{package.version} (half-installed)"


def _common(candidates: Mapping[str, tuple[dpkg.Candidate, ...]]) -> tuple[str, ...]:
    """Versions that every one of the four packages is offered in, newest first."""
    sets = [{candidate.version for candidate in candidates.get(name, ())} for name in PACKAGES]
    return tuple(sorted(set.intersection(*sets), key=dpkg.version_key, reverse=True))


def _left_by_operator(text: str) -> Iterator[str]:
    for key, value in toolkit_config.read_keys(text).items():
        if key in toolkit_config.KEYS and isinstance(value, str):
            path = value.lstrip("@")
            if any(path == root or path.startswith(root + "/") for root in _LEFT_BY_OPERATOR):
                yield key
