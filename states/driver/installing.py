"""The steps that bring the driver's packages, with apt, dnf or zypper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpustate import Step, ops
from gpustate.formats.rpm import is_rpm
from gpustate.probes.package_files import sources_of
from gpustate.states.driver import building, files, repairs, rpmscripts, scripts
from gpustate.states.driver.observed import Observed


@dataclass(frozen=True, slots=True)
class Installation:
    """What is installed, and what has to happen around it.

    Args:
        observed, wanted: the observation, and what it should be.
        fields: fields that change.
        headers: packages with kernel headers that are missing, with their versions.
        hold: the set is held afterwards, but for what the observation that is wanted does not hold.
        reloads: the loaded modules are replaced, so that services have to be stopped.
        dkms: modules are built on the node.
    """

    observed: Observed
    wanted: Observed
    fields: frozenset[str]
    headers: tuple[tuple[str, str], ...]
    hold: bool
    reloads: bool
    dkms: bool

    @property
    def installs(self) -> bool:
        # What the installer leaves behind may be what the packages had put there.
        return (
            bool(self.fields & {"packages", "missing", "installer"})
            or ("built" in self.fields and not self.dkms)
            or (
                "library" in self.fields
                and not repairs.explain(self.observed.library, self.observed.damaged)
            )
        )

    @property
    def again(self) -> bool:
        # The packages may be right and only a file of theirs be wrong.
        return not self.fields & {"packages", "missing"}

    @property
    def _packaged(self) -> tuple[str, ...]:
        """Kernels whose module is of the version of the packages, and so theirs."""
        versions = self.observed.packages.values()
        pairs = ((k, have.partition(" ")[0]) for k, have in self.observed.built.items() if have)
        return tuple(kernel for kernel, have in pairs if any(have in v for v in versions))

    @property
    def remove(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.observed.packages) - set(self.wanted.packages)))

    @property
    def written(self) -> tuple[str, ...]:
        return tuple(path for field, path in files.PATHS.items() if field in self.fields)

    def steps(self) -> Iterator[Step]:
        """From the files that decide what is pulled in, to what is held."""
        early = files.EARLY & self.fields
        damaged = self.observed.damaged if "damaged" in self.fields else ()
        lost = sources_of(damaged)
        if lost:
            yield repairs.sources(lost, must=not self.installs)
        # Pin and stream decide what the packages pull in; other files wait until all is downloaded.
        yield from files.write(self.wanted, early)
        late = self.fields & files.PATHS.keys() - early
        observed, damaged = self.observed, tuple(row for row in damaged if row not in lost)
        if is_rpm(observed.manager):
            yield from self._rpm(late)
            installed, desired = observed.packages, self.wanted.packages
            yield from ops.reinstall(observed.manager, damaged, installed, desired, hold=self.hold)
        else:
            yield from self._apt(late)
            if damaged:
                yield repairs.files(damaged)

    def _apt(self, late: frozenset[str]) -> Iterator[Step]:
        also = tuple(name for name, _ in self.headers)
        if self.installs:
            yield scripts.fetch(
                self.wanted.packages, self.remove, also, self.written, self.observed.absent_holds
            )
        if self.headers and (self.again or not self.installs):
            yield ops.AptInstall(self.headers, roll_back=self.written)
        yield from files.write(self.wanted, late)
        if self.installs:
            yield from self._before()
            yield scripts.install(
                self.wanted.packages,
                self.remove,
                also,
                again=self.again,
                # Ubuntu's packages and NVIDIA's for it have common files, and no relation that says so.
                apart=self.observed.os_id == "ubuntu",
                built=self.observed.built,
                packaged=self._packaged,
                roll_back=self.written,
            )
        elif "broken" in self.fields:
            yield scripts.settle()
        if self._holds and self.hold:
            yield scripts.hold_all()
        yield from self._release()

    def _rpm(self, late: frozenset[str]) -> Iterator[Step]:
        manager, packages = self.observed.manager, dict(self.wanted.packages)
        further = building.further_modules(self.observed)
        if self.installs and not self.again:
            packages |= further
        elif further and self.fields & {"modules", "loaded"}:
            yield ops.install(manager, tuple(further.items()), roll_back=self.written)
        if "broken" in self.fields:
            yield rpmscripts.settle(manager, self.observed.broken, packages)
        if self.headers and self.installs and not self.again:
            packages |= dict(self.headers)
        elif self.headers:
            yield ops.install(manager, self.headers, roll_back=self.written)
        if self.installs:
            yield rpmscripts.fetch(
                manager,
                packages,
                self.remove,
                again=self.again,
                hold=self.hold,
                roll_back=self.written,
            )
        yield from files.write(self.wanted, late)
        if self.installs:
            yield from self._before()
            first = (self.observed.default_kernel, self.observed.running)
            yield rpmscripts.install(
                manager,
                packages,
                self.remove,
                again=self.again,
                built=self.observed.built,
                packaged=self._packaged,
                desired={k: want for k, want in self.wanted.built.items() if want and k in first},
                dkms=self.dkms,
                roll_back=self.written,
            )
        if self._holds and self.hold:
            yield rpmscripts.hold_all(manager, self.remove)
        yield from self._release()

    @property
    def _holds(self) -> bool:
        """Holds may be other ones than those that are wanted."""
        return bool(self.fields & {"held", "packages", "missing", "library"})

    def _release(self) -> Iterator[Step]:
        """Release what a rollback found without a hold."""
        held = self.wanted.packages if self.hold else self.observed.held
        released = (set(held) & self.wanted.packages.keys()) - set(self.wanted.held)
        if self._holds and released:
            yield ops.hold(self.observed.manager, tuple(sorted(released)), hold=False)

    def _before(self) -> Iterator[Step]:
        if self.reloads:
            yield scripts.note_services()
        if "installer" in self.fields:
            yield scripts.uninstall()
