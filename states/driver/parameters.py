"""Parameters of the driver's state: what may be given, and what goes together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from gpustate.core.parameter_errors import together
from gpustate.formats import dpkg, drivernames, driverschemes, driverset, rpm
from gpustate.solve import branches
from gpustate.solve.request import DriverRequest, SolvedState
from gpustate.states.driver.observed import Observed

_PARAMETER = re.compile(r"(NVreg_[A-Za-z0-9_]+|nvidia[a-z_-]*\.[A-Za-z0-9_]+)$")


class DriverParameters(SolvedState[Observed]):
    """What the driver's state takes; :class:`gpustate.states.driver.DriverInstalled` tells each."""

    version: str | None = None
    branch: Annotated[int, Field(ge=400, le=999)] | None = None
    locked: Mapping[str, str] = Field(default_factory=dict[str, str])
    module_type: Literal["auto", "open", "proprietary"] = "auto"
    packages: Literal["compute", "full"] = "compute"
    headers: Literal["install", "require"] = "install"
    hold: bool = True
    parameters: Mapping[str, int | str] = Field(default_factory=dict[str, int | str])
    load: bool = True
    in_use: Literal["refuse", "reboot"] = "refuse"
    leftovers: Literal["refuse", "uninstall"] = "refuse"
    precompiled: bool | None = None
    secure_boot: Literal["check", "ignore"] = "check"
    reboot_timeout_s: Annotated[int, Field(ge=30)] = 900

    @property
    def may_end(self) -> tuple[str, ...] | None:
        return None if self.in_use == "reboot" else ()

    @field_validator("version")
    @classmethod
    def _version(cls, value: str | None) -> str | None:
        if value in branches.CHANNELS or value is None:
            return value
        if re.fullmatch(r"\d{3}", value):
            raise ValueError(
                f"must be a whole version; for the newest of a branch set branch: {value}"
            )
        if not re.fullmatch(r"\d{3}\.\d+(\.\d+)?", value):
            raise ValueError(
                f"must be a driver version such as '580.65.06', or {', '.join(branches.CHANNELS)}"
            )
        return value

    @field_validator("locked")
    @classmethod
    def _packages(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, version in value.items():
            good = (rpm.is_name(name) or dpkg.is_name(name)) and re.fullmatch(
                r"[0-9A-Za-z.+:~^_-]+", version
            )
            if not good or not driverset.is_member(name, version):
                raise ValueError(f"{name!r} {version!r} is not a driver package")
        return value

    @field_validator("parameters")
    @classmethod
    def _names(cls, value: Mapping[str, int | str]) -> Mapping[str, int | str]:
        for name, setting in value.items():
            if not _PARAMETER.match(name):
                raise ValueError(f"{name!r} must be NVreg_NAME or nvidia-MODULE.NAME")
            if isinstance(setting, str) and not re.fullmatch(r"[^\s\"'\\]+", setting):
                raise ValueError(f"{name}: {setting!r} has blanks or quotes in it")
        return value

    @together
    def _consistent(self) -> DriverParameters:
        exact = None if self.version in branches.CHANNELS else self.version
        if exact and self.branch and driverset.branch_of(exact) != self.branch:
            raise ValueError(
                f"version {exact} is not of branch {self.branch}; set only one of them"
            )
        for name, version in self.locked.items():
            versioned = not driverset.any_version_fits(name)
            if versioned and driverset.driver_version(version) != exact:
                raise ValueError(
                    f"locked has {name} {version}, which is not part of driver {self.version}"
                )
        return self

    def request(self) -> DriverRequest:
        channel = self.version if self.version in branches.CHANNELS else None
        return DriverRequest(
            None if channel else self.version,
            channel,
            self.branch,
            self.module_type,
            self.packages == "full",
            bool(self.precompiled),
        )

    def locked_parameters(
        self, driver: str, module_type: str, packages: Mapping[str, str]
    ) -> dict[str, object]:
        return {"version": driver, "module_type": module_type, "locked": packages}

    def names_to_query(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Packages that apt is asked about, by distribution."""
        branches = self._branches()
        return tuple(
            (
                os_id,
                tuple(dict.fromkeys((*driverset.names_to_query(os_id, branches), *self.locked))),
            )
            for os_id in ("debian", "ubuntu")
        )

    def rpm_names(self) -> tuple[str, ...]:
        """Packages that dnf or zypper is asked about."""
        names = [*driverset.names_to_query("rhel", ()), *driverset.names_to_query("sles", ())]
        return tuple(dict.fromkeys((*names, *self.locked)))

    def flavoured(self) -> tuple[str, ...]:
        """Packages with built modules that zypper is asked about, by the flavour of the kernel."""
        return tuple(
            scheme.fill(name, 0, is_open)
            for scheme in driverschemes.of("sles")
            for name in scheme.prebuilt
            for is_open in (True, False)
            if self.precompiled is not False
        )

    def _branches(self) -> tuple[int, ...]:
        branch = self.branch
        if self.version is not None and self.version not in branches.CHANNELS:
            branch = driverset.branch_of(self.version)
        return drivernames.KNOWN_BRANCHES if branch is None else (branch,)

    def per_kernel(self) -> tuple[str, ...]:
        """The same for names that carry a kernel's release."""
        if self.precompiled is False:
            return ()
        branches = self._branches()
        return tuple(
            f"linux-modules-nvidia-{branch}{flavour}{kind}-{{k}}"
            for branch in branches
            for flavour in ("-server", "")
            for kind in ("-open", "")
        )
