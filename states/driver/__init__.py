"""One matched NVIDIA driver: modules, libraries and tools at one version, held, built and loaded.

The packages are installed in one transaction of apt, dnf or zypper, at exact versions, and everything
that belongs to the driver is held afterwards, as dpkg or rpm knows it then. A pin of apt's stands behind
the hold, so that what a package pulls in later cannot be newer; where dnf has module streams, the one that
has the set is enabled. A module is built for every kernel
that can boot before anything is reloaded or rebooted: the node that boots its next kernel without
a module is the one nobody looks at.

Surprising: a successful package installation does not prove that a module exists (without headers
nothing is built); a module on disk is not the one that is loaded; and the library must match the
loaded one, not the one on disk. So four versions are read, and each may differ.

Sources:
    NVIDIA driver installation guide r615 and r620; NVIDIA/gpu-driver-container (load and unload
    order); NVIDIA/k8s-driver-manager (what holds the modules); dkms(8), apt-mark(8), mokutil(1).
    pando85/homelab#4110, NVIDIA/gpu-operator#367, #504, #1726.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from gpustate import Conflict, Disruption, Node, Plan, Step, diff, ops
from gpustate.core.facts import NodeFacts
from gpustate.core.packages import Offer, StatePackages
from gpustate.core.planned import PlannedObservation
from gpustate.documents import Json, JsonView
from gpustate.formats import driverset, fabric
from gpustate.formats.dpkg import Candidate, version_key
from gpustate.formats.driverschemes import of as schemes_of
from gpustate.formats.rpm import MANAGERS, is_rpm
from gpustate.ops import modsign
from gpustate.ops.transaction import PIN_PATH, TransactionQuery
from gpustate.probes.gpu_clients import GpuClientsQuery, GpuProcess
from gpustate.probes.package_files import sources_of
from gpustate.probes.repository_preview import previewed
from gpustate.solve.request import OfferedDriver, Solution
from gpustate.states.driver import building, files, refusals, repairs, required, rpmscripts, scripts
from gpustate.states.driver.choice import Request, choose, why_of_another_source
from gpustate.states.driver.gpus import module_type
from gpustate.states.driver.installing import Installation
from gpustate.states.driver.observed import AptQuery, Observed, plain_value
from gpustate.states.driver.parameters import DriverParameters
from gpustate.states.driver.probing import MODULES, observe

#: Packages beside the driver that follow it, by their facts for the compatibility matrix.
_BESIDE = {
    "fabric_manager": re.compile(r"nvidia-fabric-?manager(?!-dev).*"),
    "imex": re.compile(r"nvidia-imex.*"),
    "nscq": re.compile(r"libnvidia-nscq.*"),
    "nvsdm": re.compile(r"libnvsdm.*"),
}
_WHY_SWAP = "libraries change below running programs"
_LOADING = frozenset({"loaded", "parameters", "modules"})
#: Fields of which a plan shows the changes although it waits for the repository.
_PREDICTED = ("installer", "library", "packages", "headers", "stream", "pin_text")


def _facts(target: driverset.Target) -> dict[str, object]:
    return {
        "driver": target.version,
        "module_type": target.module_type,
        "module_source": "dkms" if target.builds else "precompiled",
    }


class DriverInstalled(DriverParameters):
    """The NVIDIA driver is installed, held, built for every kernel, and loaded (apt, dnf, zypper).

    Args:
        version: exact driver version, as ``580.65.06``; decides when given. Or ``latest``,
            ``latest-lts``, ``latest-production``, ``latest-new-feature``: what is installed of that
            kind of branch stays, and a fresh node gets the newest.
        branch: driver branch, as ``580``: the newest version of it that is offered. With neither,
            what is installed stays, and a fresh node gets the newest that drives its GPUs.
        locked: full versions of packages, by name; what ``gpustate.lock`` says of a node. They are
            installed exactly so, or not at all.
        module_type: ``open``, ``proprietary``, or ``auto``: by GPU and branch.
        packages: ``compute`` leaves display libraries out, ``full`` takes them in. Display packages
            that are there already move along in either case, unless their names change, as with another branch
            or flavour of Ubuntu: then ``compute`` removes them, and the plan names them.
        headers: ``install`` headers for kernels that lack them, or ``require`` that they are there.
        hold: hold everything that belongs to the driver. A foreign package that is held is never changed:
            an installation that needs that fails before it changes anything. Foreign holds of the driver's own
            packages are overridden, and the plan names them.
        parameters: module parameters, ``NVreg_...`` of nvidia, or ``nvidia-uvm.NAME`` for others.
        load: load nvidia, nvidia-uvm and nvidia-modeset, now and at boot.
        in_use: when a process that is no known service has a GPU open and the modules must be
            unloaded: ``refuse`` the node, or ``reboot`` it. Pods leave before that, by their scheduler.
        leftovers: when NVIDIA's .run installer put a driver here: ``refuse`` the node, or ``uninstall``
            that driver with its own nvidia-uninstall once the packages are downloaded.
        precompiled: use modules that are built already. Not given: Ubuntu's where they are there already, or
            Secure Boot is on and no key of the node's own is enrolled, if they are offered for every kernel; with rpm those of the
            repository where it has the same version for every kernel and nothing was built by DKMS yet.
        secure_boot: ``check`` that the key DKMS signs with is enrolled, or ``ignore``.
        reboot_timeout_s: how long the node may take to come back, in seconds.

    Disruption:
        ``DRAIN`` where a loaded driver is replaced or gets other parameters; ``REBOOT`` where
        nouveau or something unknown holds the modules; ``NONE`` otherwise.
    """

    name: ClassVar[str] = "driver"
    labels: ClassVar[Mapping[str, str]] = {
        "broken": "half-installed packages",
        "headers": "kernel headers",
        "built": "modules built, by kernel",
        "loaded": "loaded driver",
        "modules": "loaded modules",
        "library": "driver version",
        "pin_text": "pin file",
        "options_text": "options file",
        "autoload_text": "modules loaded at boot",
        "parameters": "module parameters",
        "stopped": "services stopped by an interrupted reload",
        "installer": "installed by NVIDIA's .run installer",
        "device_nodes": "wrong device nodes",
        "stream": "dnf module stream",
        "stream_kept": "the stream of before is kept",
        "left_stopped": "services stopped without a driver",
    }
    implies: ClassVar[Mapping[str, str]] = {
        "nouveau": "the kernel's own driver must not hold the GPUs",
        "driver-repository": "its packages come from there, where no other repository of the node has them",
        "fabric-manager": "GPUs behind NVSwitches need it",
    }
    needs: ClassVar[tuple[str, ...]] = ("preflight", "nouveau", "secure-boot", "driver-repository")
    known_after: ClassVar[tuple[str, ...]] = ("preflight", "secure-boot", "driver-repository")
    indispensable: ClassVar[bool] = True
    essential: ClassVar[bool] = True
    worst: ClassVar[Disruption] = Disruption.REBOOT
    stable: ClassVar[tuple[str, ...] | None] = (
        *("packages", "held", "broken", "headers", "built", "loaded", "modules", "library"),
        *("pin_text", "options_text", "autoload_text", "stream", "parameters", "running"),
        *("default_kernel", "installer", "missing", "damaged", "device_nodes"),
    )

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        return required.required(self, offer, observed)

    def pinned(self, observed: Observed) -> JsonView:
        installed = observed.whole
        if installed is None:
            return {}
        scheme, version, kind = installed
        precompiled = not building.builds_with_dkms(observed)
        compute = scheme.required(
            driverset.branch_of(version), kind, full=False, prebuilt=precompiled
        )
        pins: Json = {
            "version": version,
            "branch": None,
            "module_type": kind,
            "locked": {
                name: full
                for name, full in observed.packages.items()
                if driverset.any_version_fits(name) or driverset.driver_version(full) == version
            },
            "hold": bool(observed.held),
            # Loaded by hand, it has no file.
            "load": observed.autoload_text is not None
            or (self.load and observed.loaded is not None),
            "precompiled": precompiled,
        }
        if not observed.packages.keys() >= set(compute):
            pins["packages"] = "full"
        options = files.parameters_in(observed.options_text)
        return pins if options is None else {**pins, "parameters": options}

    def as_before(self, wanted: Observed, observed: Observed, before: JsonView) -> Observed:
        former: Mapping[str, str] = before["packages"]
        driver = replace(wanted, packages=dict(former)).whole
        if driver is None or not driver[1] == wanted.library == self.version:
            return wanted
        names = driverset.names_to_query(wanted.os_id, (driverset.branch_of(driver[1]),))
        exempt = self._exempt(observed)
        names = (*names, *building.modules_of(driver, exempt, wanted.packages))
        packages = {n: v for n, v in wanted.packages.items() if n in former or n not in names}
        if wanted.running in exempt:
            wanted = replace(
                wanted,
                loaded=None,
                modules=(),
                parameters=observed.parameters,
                device_nodes=observed.device_nodes,
                left_stopped=observed.left_stopped,
            )
        # A module that nothing had loaded before is of the run's driver, and does not fit the libraries.
        fitting = wanted.built.get(wanted.running) or wanted.loaded
        return replace(
            wanted,
            packages=packages,
            held=tuple(sorted(packages.keys() & set(before["held"]))),
            headers={
                k: observed.headers[k] if k in exempt else v for k, v in wanted.headers.items()
            },
            built={k: None if k in exempt else want for k, want in wanted.built.items()},
            loaded=None if wanted.loaded is None else fitting,
            pin_text=None if before["pin_text"] is None else wanted.pin_text,
            autoload_text=None if before["autoload_text"] is None else wanted.autoload_text,
        )

    def solve(self, node: Node, preview: str) -> Solution:
        query = previewed(self._ask_all, preview, PIN_PATH)
        observed = observe(node, query, tuple(self.parameters))
        if self._request(prebuilt=False).keeps:
            observed = replace(observed, packages={}, held=())
        observed = self._solved(node, observed, preview)
        target, problem = self._choose(observed)
        if target is not None and observed.unsolvable:
            problem = refusals.unsolvable(observed, target.version)
        request = self._request(prebuilt=self._prebuilt(observed))
        drivers = tuple(
            OfferedDriver(version, kind, tuple(self._obstacles(request, observed, version, kind)))
            for _, version, kind in driverset.choices(
                observed.os_id, observed.offers, full=request.full, prebuilt=request.precompiled
            )
        )
        if target is None:
            return Solution(offers=observed.offers, drivers=drivers, problem=problem or "")
        version, kind, packages = target.version, target.module_type, target.packages
        return Solution(version, kind, packages, observed.offers, drivers, problem or "")

    def _obstacles(
        self, request: Request, observed: Observed, version: str, kind: str
    ) -> Iterator[str]:
        if not request.admits(version):
            yield f"the policy requests {self.request().text}"
        fitting, why = module_type(observed.gpus, driverset.branch_of(version), self.module_type)
        if fitting != kind:
            yield why or f"{fitting} modules are needed"

    # --- probe ---------------------------------------------------------------------------

    @property
    def _query(self) -> AptQuery:
        return AptQuery(
            self.names_to_query(),
            self.per_kernel(),
            self.precompiled is None,
            self.rpm_names(),
            self.flavoured(),
        )

    @property
    def _ask_all(self) -> AptQuery:
        return self.model_copy(update={"version": None, "branch": None})._query

    def _observe(self, node: Node, preview: str) -> Observed:
        """The node; with the offers of all branches where a refusal has to name them."""
        query = previewed(self._query, preview, PIN_PATH)
        observed = observe(node, query, tuple(self.parameters))
        answered = node.query(query) != query.placeholder()
        by_branch = any(scheme.by_branch for scheme in schemes_of(observed.os_id))
        if answered and by_branch and not self.absent and self._choose(observed)[0] is None:
            query = previewed(self._ask_all, preview, PIN_PATH)
            observed = observe(node, query, tuple(self.parameters))
        return self._solved(node, observed, preview)

    def probe(self, node: Node) -> Observed:
        observed = self._observe(node, "")
        if self._reloads(observed):
            observed = replace(
                observed,
                holders=node.query(GpuClientsQuery()),
                services=node.query(scripts.ServicesQuery()),
            )
        return observed

    def _solved(self, node: Node, observed: Observed, preview: str) -> Observed:
        """With the origin of the packages that change, and what the package manager has against them.

        What is half-installed or missing is put in order by an apply before.
        """
        target = None if self.absent else self._choose(observed)[0]
        unclear = observed.broken or observed.missing
        if target is None or observed.packages == target.packages or unclear:
            return observed
        kernels = [k for k, have in observed.headers.items() if target.builds and not have]
        headers = dict(building.header_packages(observed, kernels))
        install = {**target.packages, **headers, **building.further_modules(observed)}
        pin = files.settled_pin_text(target.version, observed, target.packages)
        change = observed.manager, tuple(install.items()), target.remove
        texts = scripts.SPARES, rpmscripts.LOCKED
        problem, installs, pins, _ = node.query(TransactionQuery(*change, preview, pin, *texts))
        further = install.keys() - target.packages.keys()
        extra = {name: row for name, row in installs.items() if name not in further}
        return replace(
            observed,
            unsolvable=problem,
            pins=pins,
            further=tuple((name, install[name]) for name in sorted(further)),
            origin=building.origin(target.packages, extra),
            headers_origin=building.origins(
                {n: installs.get(n, Candidate(v, "")) for n, v in headers.items()}
            ),
        )

    def forecast(self, node: Node, preview: str) -> Plan:
        observed = self._observe(node, preview)
        if modsign.ENROLLED in preview:
            boot = replace(observed.secure_boot, enrolled=True)
            observed = replace(observed, secure_boot=boot)
        target, problem = self._choose(observed)
        if target is None:
            # Without a preview, what is ahead may yet bring it.
            return (
                Plan(refusal=problem) if preview else Plan(notes=(f"will be refused: {problem}",))
            )
        how = "built on the node with DKMS" if target.builds else "prebuilt"
        text = f"driver {target.version} with {target.module_type} kernel modules, {how}"
        text += f"; removed: {', '.join(target.remove)}" if target.remove else ""
        if self._reloads(observed):
            observed = replace(observed, services=node.query(scripts.ServicesQuery()))
        stays = observed.whole is not None and observed.whole[1] == target.version
        plan = self.plan(observed).predicted(_PREDICTED)
        return replace(
            plan,
            notes=(f"{'stays' if stays else 'will install'} {text}", *plan.notes),
            refusal=self._refuse_present(observed) if plan or not stays else None,
            facts=_facts(target),
        )

    # --- desired, plan -------------------------------------------------------------------

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        library, built = planned.value("library"), planned.value("built")
        texts = [entry for entry in built.values() if entry] if isinstance(built, Mapping) else []
        kinds = {text.rpartition(" ")[2] for text in texts}
        facts: dict[str, object] = {"driver": library}
        if len(kinds) == 1:
            facts["module_type"] = kinds.pop()
        if not planned.unchanged:
            facts |= self._policy_facts() | ({"driver": library} if library else {})
        if isinstance(planned.observed, Observed):
            facts |= self._observed_facts(planned.observed, planned)
        return facts

    def _policy_facts(self) -> dict[str, object]:
        values = {name: plain_value(value) for name, value in self.parameters.items()}
        gsp = values.get("NVreg_EnableGpuFirmware")
        hmm = values.get("nvidia-uvm.uvm_disable_hmm") != "1"
        sources = {True: "precompiled", False: "dkms", None: None}
        return {
            "driver": self.version or self.branch,
            **({} if self.module_type == "auto" else {"module_type": self.module_type}),
            "module_source": sources[self.precompiled],
            "cdmm": values.get("NVreg_CoherentGPUMemoryMode") == "driver",
            "gsp": None if gsp is None else gsp != "0",
            "uvm_hmm": None
            if self.module_type == driverset.PROPRIETARY
            else "on"
            if hmm
            else "off",
        }

    def _observed_facts(self, observed: Observed, planned: PlannedObservation) -> dict[str, object]:
        facts: dict[str, object] = {"secure_boot": observed.secure_boot.on}
        is_final = planned.known and not planned.unchanged
        if is_final and (target := self._choose(observed)[0]) is not None:
            facts |= _facts(target)
        if observed.switches and fabric.may_need(
            (g.device_id for g in observed.gpus), fabric.NVLSM
        ):
            facts["fabric"] = "nvlink5"
        after = planned.value("packages")
        packages = after if isinstance(after, Mapping) else observed.packages
        for fact, pattern in _BESIDE.items():
            versions = [v for name, v in packages.items() if pattern.fullmatch(name)]
            if not versions or planned.known:
                facts[fact] = versions[0] if versions else "none"
        return facts

    def conflicts(
        self, policy: JsonView, facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        yield from super().conflicts(policy, facts, observed)
        if observed is not None and not self.absent and observed.os_id == "ubuntu":
            target, _ = self._choose(observed)
            kernel = policy.get("kernel")
            follows = getattr(kernel, "policy", "") == "follow"
            no_kernel = kernel is None or kernel.absent
            if target is not None and not target.builds and (follows or no_kernel):
                move = (
                    "add the state kernel, which holds kernels"
                    if no_kernel
                    else "set policy: hold in the state kernel"
                )
                yield Conflict(refusals.WHY_HOLD + move, warning=True, with_changes=True)

    def _prebuilt(self, observed: Observed) -> bool:
        """Built modules are taken: asked for, or Ubuntu's where no others load, or for every kernel with rpm."""
        if self.precompiled is not None:
            return self.precompiled
        if is_rpm(observed.manager) and not building.builds_with_dkms(observed):
            ready, compiled = (self._choose_with(observed, prebuilt=p)[0] for p in (True, False))
            return ready is not None and (compiled is None or compiled.version == ready.version)
        if observed.os_id != "ubuntu":
            return False
        boot, signed = observed.secure_boot, any(map(files.is_signed, observed.packages))
        if building.signed_only(observed):
            return self._choose_with(observed, prebuilt=True)[0] is not None
        if not boot.on or boot.enrolled or (observed.loaded is not None and not signed):
            return False
        return self._choose_with(observed, prebuilt=True)[0] is not None

    def _choose(self, observed: Observed) -> tuple[driverset.Target, None] | tuple[None, str]:
        return self._choose_with(observed, prebuilt=self._prebuilt(observed))

    def _choose_with(
        self, observed: Observed, *, prebuilt: bool
    ) -> tuple[driverset.Target, None] | tuple[None, str]:
        return choose(self._request(prebuilt=prebuilt), observed, self._exempt(observed))

    def _exempt(self, observed: Observed) -> frozenset[str]:
        """Kernels that had no module before the run that is undone: they get none, and need no package of modules."""
        # DKMS builds for every kernel that has headers by now.
        built = {k for k, has in observed.headers.items() if has and self.precompiled is False}
        modules: Mapping[str, str | None] = (self.observed_before or {}).get("built", {})
        return frozenset(k for k in observed.built.keys() - built if modules.get(k, "") is None)

    def _request(self, *, prebuilt: bool) -> Request:
        full = self.packages == "full"
        return Request(self.version, self.branch, self.module_type, full, prebuilt, self.locked)

    def _loads(self, observed: Observed) -> bool:
        """The driver is to be loaded here: an image or a node without GPUs has nothing to load it for."""
        return self.load and bool(observed.gpus) and not observed.image

    def _can_build(self, observed: Observed, kernel: str) -> bool:
        return building.can_build(observed, kernel, install=self.headers == "install")

    def _lacking(self, observed: Observed) -> list[str]:
        """Kernels that a module would have to be built for, and cannot."""
        target, _ = self._choose(observed)
        kernels = observed.headers if target is not None and target.builds else ()
        return [kernel for kernel in kernels if not self._can_build(observed, kernel)]

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(
                observed,
                packages={},
                held=(),
                broken=(),
                built=dict.fromkeys(observed.built),
                loaded=None,
                modules=(),
                library=None,
                pin_text=None,
                options_text=None,
                autoload_text=None,
                parameters=dict.fromkeys(observed.parameters),
                stopped=(),
                missing=(),
                damaged=(),
                device_nodes=(),
                stream_kept=False,
            )
        target, _ = self._choose(observed)
        if target is None:
            return observed
        want = f"{target.version} {target.module_type}"
        prebuilt = not target.builds
        buildable = [k for k in observed.built if prebuilt or self._can_build(observed, k)]
        loads = self._loads(observed)
        return replace(
            observed,
            packages=target.packages,
            # The hold of a package that leaves ends with it.
            held=tuple(sorted(target.packages))
            if self.hold
            else tuple(name for name in observed.held if name in target.packages),
            broken=(),
            headers={
                k: have or (not prebuilt and self._can_build(observed, k))
                for k, have in observed.headers.items()
            },
            built={k: want if k in buildable else have for k, have in observed.built.items()},
            loaded=want if loads else observed.loaded,
            modules=MODULES if loads else observed.modules,
            library=target.version,
            pin_text=None
            if is_rpm(observed.manager)
            else files.settled_pin_text(target.version, observed, target.packages),
            stream=building.stream(observed, target),
            options_text=files.options_text(self.parameters),
            autoload_text=files.AUTOLOAD_TEXT if self.load else None,
            parameters=self._wanted_parameters(observed) if loads else observed.parameters,
            stopped=(),
            missing=(),
            damaged=(),
            device_nodes=() if loads else observed.device_nodes,
            left_stopped=() if loads else observed.left_stopped,
            installer=observed.installer and self.leftovers == "refuse",
        )

    def _wanted_parameters(self, observed: Observed) -> dict[str, str | None]:
        # What the loaded driver does not list cannot be compared.
        unlisted = refusals.unlisted(observed, tuple(self.parameters))
        return {n: None if n in unlisted else plain_value(v) for n, v in self.parameters.items()}

    def _reloads(self, observed: Observed) -> bool:
        """A loaded driver must be unloaded for what is wanted."""
        if observed.loaded is None:
            return False
        desired = self.desired(observed)
        return desired.loaded != observed.loaded or desired.parameters != observed.parameters

    def _foreign_holders(self, observed: Observed) -> list[GpuProcess]:
        return [holder for holder in observed.holders if holder.unit not in scripts.SERVICES]

    def _load_cost(self, observed: Observed) -> tuple[Disruption, str]:
        if observed.in_use:
            return Disruption.REBOOT, observed.in_use
        if not self._reloads(observed):
            return Disruption.NONE, ""
        unloads = self.desired(observed).loaded is None
        foreign = self._foreign_holders(observed)
        if foreign and self.in_use == "reboot":
            return Disruption.REBOOT, f"{foreign[0].description} holds a GPU"
        return Disruption.DRAIN, f"the loaded modules are {'un' if unloads else 're'}loaded"

    def worst_case(self, observed: Observed, facts: NodeFacts) -> tuple[Disruption, str] | None:
        if observed.in_use:
            return Disruption.REBOOT, f"its modules have to change: {observed.in_use}"
        if observed.loaded is None:
            return Disruption.NONE, ""
        if self.in_use == "reboot":
            return Disruption.REBOOT, "its modules have to change while a program has a GPU open"
        return Disruption.DRAIN, "its version or parameters change"

    def plan(self, observed: Observed) -> Plan:
        desired = self.desired(observed)
        cost, because = self._load_cost(observed)
        moved = any(
            desired.packages.get(name, "") != version for name, version in observed.packages.items()
        )
        swap = Disruption.DRAIN if observed.loaded and moved else Disruption.NONE
        plan = diff(
            observed,
            desired,
            costs={"loaded": cost, "parameters": cost, "packages": swap, "library": swap}
            | {"installer": Disruption.DRAIN if observed.loaded else Disruption.NONE}
            | ({"modules": cost} if observed.in_use else {}),
            why={
                "loaded": because,
                "parameters": because,
                "packages": "; ".join(filter(None, (_WHY_SWAP if swap else "", observed.origin))),
                "headers": observed.headers_origin,
                "built": refusals.complaints(observed, desired),
                "stopped": f"a {'removal' if self.absent else 'reload'} was interrupted",
                "left_stopped": "the removal of the driver stopped them",
                "missing": "required by installed packages",
                "installer": "the driver installed by NVIDIA's .run installer is removed",
                "device_nodes": "a GPU without a device node is unusable for every program",
            },
            paths=files.PATHS,
        )
        warnings = refusals.warnings(observed) if desired.autoload_text else ()
        users = tuple(holder.description for holder in self._foreign_holders(observed))
        notes = tuple(self._notes(observed, desired))
        return Plan(
            plan.changes,
            notes,
            warnings=tuple(warnings),
            gpu_users=users,
            installs=() if self.absent else observed.further,
            restarted=observed.services if desired.loaded and cost is Disruption.DRAIN else (),
        )

    def _notes(self, observed: Observed, desired: Observed) -> Iterator[str]:
        yield from self._stops(observed)
        again = [unit for unit in observed.left_stopped if " " not in unit]
        if again and not desired.left_stopped:
            yield f"stopped by the removal of the driver and started again: {', '.join(again)}"
        if not self.absent:
            if self.load and not observed.gpus and not observed.image:
                yield "no NVIDIA GPU on PCI: installed, not loaded"
            if self.precompiled is None and self._prebuilt(observed):
                signed = refusals.WHY_PREBUILT if observed.secure_boot.on else refusals.WHY_THERE
                yield refusals.WHY_OFFERED if is_rpm(observed.manager) else signed
            if self.hold and not observed.can_hold:
                yield refusals.WHY_PLUGIN
            origin = why_of_another_source(
                self._request(prebuilt=self._prebuilt(observed)), observed
            )
            yield from () if origin is None else (origin,)
            if not self.locked:
                yield from refusals.flavour(observed, desired.packages)
            yield from self._pinned_away(observed, desired)
            yield from refusals.admitting_pins(observed, desired)
            full = self.packages == "full"
            yield from refusals.overridden(observed, desired.packages, hold=self.hold, full=full)
            lacking = self._lacking(observed)
            yield from refusals.notes(observed, desired, tuple(self.parameters), lacking)

    def _pinned_away(self, observed: Observed, desired: Observed) -> Iterator[str]:
        """The newer driver that the policy admits and a foreign pin forbids."""
        request = self._request(prebuilt=False)
        files_of_pins = {version: path for (version, _), path in observed.pinned_away.items()}
        newest = max(filter(request.admits, files_of_pins), key=version_key, default="")
        stays = request.keeps and desired.library == observed.library
        if not stays and desired.library and version_key(newest) > version_key(desired.library):
            yield f"pins in {files_of_pins[newest]} keep apt from driver {newest}"

    def _stops(self, observed: Observed) -> Iterator[str]:
        """What becomes of the services that are stopped to unload the modules."""
        if self.desired(observed).loaded is None and not observed.in_use:
            stopped = [unit for unit in observed.services if unit not in scripts.OWN_SERVICES]
            if stopped:
                yield f"stopped for it, and not started again without a driver: {', '.join(stopped)}"

    # --- refuse --------------------------------------------------------------------------

    def refuse(self, observed: Observed) -> str | None:
        if not schemes_of(observed.os_id) or observed.manager not in MANAGERS:
            return (
                f"unsupported distribution {observed.os_id or '(unknown)'}: no driver package "
                "names; exclude the node from this state with only="
            )
        if observed.operator:
            return "the GPU Operator's driver container runs here (/run/nvidia/nvidia-driver.pid); set driver.enabled=false there first"
        if not self.absent:
            why = self._refuse_present(observed)
            if why:
                return why
        # Pods leave before the change, by their scheduler; the step refuses if one has not.
        foreign = [holder for holder in self._foreign_holders(observed) if not holder.pod]
        if foreign and self.in_use == "refuse":
            return (
                f"the GPUs are in use by {', '.join(holder.description for holder in foreign)}, and the driver must be "
                "unloaded; stop these processes, or set in_use: reboot"
            )
        return None

    def _refuse_present(self, observed: Observed) -> str | None:
        if observed.installer and self.leftovers == "refuse":
            return "a driver was installed by NVIDIA's .run installer; run nvidia-uninstall on the node first, or set leftovers: uninstall"
        if observed.barred and self.load:
            return refusals.barred(observed)
        if observed.beside and not observed.installer:
            return refusals.beside(observed)
        why = refusals.overruled(observed, self.parameters)
        if why:
            return why
        if observed.image:
            why = refusals.image(observed, self.version or self.branch, self.module_type)
            if why:
                return why
        target, problem = self._choose(observed)
        if target is None:
            return problem
        desired = self.desired(observed)
        if target.builds:
            lacking = self._lacking(observed)
            why = refusals.headers(observed, desired, lacking, require=self.headers == "require")
            if why:
                return why
            if self.secure_boot == "check" and self._loads(observed):
                why = refusals.unsigned(observed, desired)
                if why:
                    return why
        if observed.unsolvable:
            return refusals.unsolvable(observed, target.version)
        return refusals.parameters(observed, self.parameters, driverset.branch_of(target.version))

    # --- apply ---------------------------------------------------------------------------

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        desired = self.desired(observed)
        if self.absent:
            yield from self._take_away(observed, plan)
            return
        lacking = [k for k in desired.headers if desired.headers[k] and not observed.headers[k]]
        target, _ = self._choose(observed)
        yield from Installation(
            observed,
            desired,
            frozenset(plan.fields),
            building.header_packages(observed, lacking) if "headers" in plan.fields else (),
            self.hold,
            # A boot starts services by itself.
            self._load_cost(observed)[0] is Disruption.DRAIN,
            target is None or target.builds,
        ).steps()
        first = (observed.default_kernel, observed.running)
        yield from self._build_steps(
            observed, plan, desired, [k for k in desired.built if k in first]
        )
        yield from self._load_steps(observed, plan, desired)
        # A kernel that is left over from last year must not keep a working node from its driver.
        yield from self._build_steps(
            observed, plan, desired, [k for k in desired.built if k not in first]
        )
        if "device_nodes" in plan.fields:
            yield repairs.nodes()
        if plan.fields & _LOADING and self._load_cost(observed)[0] is Disruption.REBOOT:
            yield ops.Reboot(self._load_cost(observed)[1], self.reboot_timeout_s)

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        target, _ = self._choose(observed)
        if self.load and not self.absent and target is not None:
            yield scripts.first_load(f"{target.version} {target.module_type}")

    def _build_steps(
        self, observed: Observed, plan: Plan, desired: Observed, kernels: list[str]
    ) -> Iterator[Step]:
        # A package's own scripts remove the modules of all kernels and build for the running one.
        again = bool(plan.fields & {"packages", "library", "broken", "installer"})
        target, _ = self._choose(observed)
        for kernel in kernels if target is None or target.builds else ():
            want = desired.built[kernel]
            if want is not None and (again or want != observed.built[kernel]):
                yield scripts.build(kernel, want)
                if observed.secure_boot.on:
                    yield modsign.sign_built(kernel)

    def _load_steps(self, observed: Observed, plan: Plan, desired: Observed) -> Iterator[Step]:
        cost, _ = self._load_cost(observed)
        if plan.fields & _LOADING and desired.loaded is not None:
            if observed.loaded is None or not self._reloads(observed):
                # Whoever holds the GPUs may be gone by now, and then no reboot is needed.
                # The package of nvidia-persistenced starts it before there is a module.
                yield ops.LoadModules(
                    scripts.LOAD_ORDER,
                    optional=cost is Disruption.REBOOT,
                    wait_for_them=("nvidia-persistenced.service",),
                )
            elif cost is not Disruption.REBOOT:
                yield scripts.reload(desired.loaded)
        elif "loaded" in plan.fields and cost is not Disruption.REBOOT:
            yield scripts.unload()
        if "stopped" in plan.fields:
            yield scripts.restart_stopped()
        # Without modules before a reboot, what was stopped is recorded as left; the boot starts it.
        boots = "stopped" in plan.fields and cost is Disruption.REBOOT
        if "left_stopped" in plan.fields or boots:
            yield scripts.start_left()

    def _take_away(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if plan.fields & {"loaded", "modules"} and not observed.in_use:
            yield scripts.unload()
        lost = sources_of(observed.damaged)
        if lost:
            yield repairs.sources(lost, must=False)
        if observed.packages:
            if observed.held:
                yield ops.hold(observed.manager, observed.held, hold=False)
            # A change to packages of other names left the configuration files of the former ones.
            leave = tuple(sorted(observed.packages))
            yield ops.remove(observed.manager, leave, remnants=driverset.MEMBER_ERE)
        for field, path in files.PATHS.items():
            if field in plan.fields:
                yield ops.RemoveOwn(path)
        if "stream_kept" in plan.fields:
            # What was enabled before is known to the node alone.
            yield ops.RestoreOriginal(files.PATHS["stream"])
        if "stopped" in plan.fields and not plan.fields & {"loaded", "modules"}:
            yield scripts.leave_stopped()
        if plan.fields & {"loaded", "modules"} and observed.in_use:
            yield ops.Reboot(observed.in_use, self.reboot_timeout_s)

    def reboot_blocker(self, observed: Observed) -> str | None:
        if self.absent or observed.manager not in MANAGERS:
            return None
        return refusals.blocker(observed, *self._choose(observed))


__all__ = ["DriverInstalled", "Observed"]
