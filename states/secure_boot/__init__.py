"""Under Secure Boot: kernel modules that are built here are signed with a key the firmware knows.

With Secure Boot on, a kernel loads no module whose signer neither it nor the firmware knows. What DKMS
builds is signed with a key of the node's own, and the firmware takes that only from a person: the
enrolment is queued here, and confirmed in MOK manager at the console during the next boot, with a
one-time password. Until then this state is "blocked: needs a console": a further apply changes nothing
and says the same, states that need this one wait, all others go on.

What is built later than the key is enrolled (a driver installed by the same run, a new kernel) is signed by
whatever builds it, before it is loaded: see :mod:`gpustate.ops.modsign`.

Signed modules of the distribution need none of that. Where Ubuntu offers them for every kernel that can
boot, no key is made, and the driver takes them.

Surprising: DKMS makes itself a key as soon as it builds, signs with it, and tells nobody that it is not
enrolled; ``mokutil --test-key`` ends with 0 or 1 depending on its version, so only its words and lists
count; an enrolment that is queued takes over the password of one that was queued before.

Sources:
    mokutil(1), openssl-req(1), dkms(8); lcp/mokutil 0.6 and 0.7: src/mokutil.c; dell/dkms 3.0 and 3.2:
    dkms.in (``prepare_mok``, ``read_framework_conf``); Linux: scripts/sign-file.c,
    Documentation/admin-guide/module-signing.rst; NVIDIA/gpu-operator#1726, #1142, #497.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from gpustate import Node, Plan, State, Step, diff, ops
from gpustate.core.packages import Offer, StatePackages
from gpustate.ops import modsign, owned_packages
from gpustate.ops.modsign import CERTIFICATE_PATH
from gpustate.probes.kernels import Kernel, Kernels
from gpustate.states.secure_boot import scripts
from gpustate.states.secure_boot.observed import (
    CONF_PATH,
    ENROLLED,
    NONE,
    QUEUED,
    TOOLS,
    Firmware,
    FirmwareQuery,
    Observed,
)


class SecureBootKeyEnrolled(State[Observed]):
    """Modules built on this node are signed with a key that its firmware knows (DKMS, shim, mokutil).

    Args:
        key: ``auto``: a key of the node's own, but not where Ubuntu offers modules that it has signed
            itself for every kernel that can boot; ``own``: in any case, for a driver that comes from
            elsewhere.

    Disruption:
        ``NONE``: what is loaded stays loaded. Somebody has to be at the console at the next boot.
    """

    name: ClassVar[str] = "secure-boot"
    labels: ClassVar[Mapping[str, str]] = {
        "tools": "signing tools installed",
        "brought": "signing tools come from gpustate",
        "own": "the node has a signing key",
        "signed": "signed modules",
        "enrolment": "enrolment of the key",
    }
    needs: ClassVar[tuple[str, ...]] = ("preflight",)
    # A reboot without anybody at the console would lose what is queued, so those come first.
    known_after: ClassVar[tuple[str, ...]] = ("preflight", "nouveau")
    before: ClassVar[tuple[str, ...]] = ("driver",)

    key: Literal["auto", "own"] = "auto"

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        return offer.optional(*(TOOLS if observed is None else observed.lacks))

    def probe(self, node: Node) -> Observed:
        facts, kernels = node.facts(), node.query(Kernels())
        firmware, conf = node.query(FirmwareQuery()), node.own_text(CONF_PATH)
        certificate = firmware.ours or firmware.certificate
        serial = certificate.serial if certificate is not None else None
        built = [k for k in kernels if _by_dkms(k)]
        trusted = {k.release: firmware.trusts(k.nvidia_signer, k.nvidia_key) for k in built}
        self_signed = {k.release: k.nvidia_key == serial and serial is not None for k in built}
        bootable = {k.release for k in kernels if k.bootable or k.running}
        return Observed(
            tools=not firmware.lacks,
            brought=firmware.brought,
            own=firmware.own,
            conf_text=conf,
            signed={k: trusted[k] or self_signed[k] for k in trusted},
            enrolment=firmware.enrolment(certificate),
            on=firmware.on,
            certificate=certificate,
            lacks=firmware.lacks,
            others_wait=_others_wait(firmware),
            modules={k.release: (k.module_path or "").rpartition("/")[0] for k in built},
            unsigned={k.release: k.nvidia_signer or "" for k in built if not trusted[k.release]},
            prebuilt=bool(bootable)
            and all(any(name.endswith(k) for name in firmware.prebuilt) for k in bootable),
            manager=facts.package_manager,
            image=facts.image,
        )

    def _applies(self, observed: Observed) -> bool:
        if not observed.on or observed.image:
            return False
        return not (self.key == "auto" and observed.prebuilt and not observed.own)

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            withdrawn = observed.own and observed.enrolment == QUEUED and not observed.others_wait
            return replace(
                observed,
                brought=False,
                own=False,
                conf_text=None,
                enrolment=NONE if withdrawn else observed.enrolment,
            )
        if not self._applies(observed):
            return observed
        owned = observed.own or observed.certificate is None
        return replace(
            observed,
            tools=True,
            own=owned,
            conf_text=scripts.CONF_TEXT if owned else None,
            signed=dict.fromkeys(observed.signed, True),
            enrolment=ENROLLED if observed.enrolment == ENROLLED else QUEUED,
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or not self._applies(observed):
            return None
        if observed.others_wait and observed.enrolment == NONE:
            return (
                "another key is queued for enrolment, and would get this one's password; confirm "
                "it at the console, or cancel it with: mokutil --revoke-import"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        desired = self.desired(observed)
        plan = diff(
            observed,
            desired,
            why={
                "own": "" if self.absent else "the firmware must trust the key that signs modules",
                "signed": "; ".join(
                    f"{k}: signed by {signer}, whose key is not enrolled"
                    if signer
                    else f"{k}: not signed"
                    for k, signer in observed.unsigned.items()
                ),
                "enrolment": "" if self.absent else "a person confirms it at the console",
            },
            paths={"conf_text": CONF_PATH},
            notes=tuple(self._notes(observed)),
        )
        waits = not self.absent and self._applies(observed) and observed.enrolment != ENROLLED
        return replace(plan, blocked=_blocked(observed) if waits else None)

    def preview(self, observed: Observed) -> str:
        return "" if self.absent or not self._applies(observed) else modsign.ENROLLED

    def _notes(self, observed: Observed) -> Iterator[str]:
        if self.absent:
            if observed.own and observed.enrolment == ENROLLED and observed.certificate is not None:
                yield (
                    f"the firmware keeps the key with SHA1 {observed.certificate.fingerprint} "
                    "until it is deleted at the console (mokutil --export, mokutil --delete); "
                    "nothing can be signed with it"
                )
        elif not observed.on:
            yield "Secure Boot is off: nothing needs to be signed"
        elif not self._applies(observed) and not observed.image:
            yield (
                "Ubuntu offers modules that it has signed for every kernel that can boot: they load "
                "without a key of the node's own and without anybody at the console"
            )
        elif observed.enrolment == NONE:
            yield "blocked until the key is confirmed at the console with the one-time password"

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        desired = self.desired(observed)
        if self.absent:
            yield from self._take_away(observed, plan)
            return
        if "tools" in plan.fields:
            named = tuple((name, "") for name in observed.lacks)
            yield owned_packages.bring(self.name, named, manager=observed.manager)
        certificate = (
            observed.certificate.path if observed.certificate is not None else CERTIFICATE_PATH
        )
        if desired.own:
            certificate = CERTIFICATE_PATH
        if "own" in plan.fields:
            yield scripts.make_key()
        if "conf_text" in plan.fields:
            yield ops.put_own(CONF_PATH, desired.conf_text)
        if "signed" in plan.fields:
            for kernel, signed in observed.signed.items():
                if not signed:
                    folder = observed.modules.get(kernel, f"/lib/modules/{kernel}/updates/dkms")
                    yield modsign.sign(kernel, folder, certificate)
        if "enrolment" in plan.fields:
            yield scripts.queue(certificate)

    def _take_away(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "enrolment" in plan.fields:
            yield scripts.revoke()
        if "conf_text" in plan.fields:
            yield ops.RemoveOwn(CONF_PATH)
        if "own" in plan.fields:
            yield scripts.destroy()
        if "brought" in plan.fields:
            yield owned_packages.take_back(self.name, (), manager=observed.manager)


def _by_dkms(kernel: Kernel) -> bool:
    path = kernel.module_path or ""
    return kernel.nvidia_version is not None and ("/updates/dkms/" in path or "/extra/" in path)


def _others_wait(firmware: Firmware) -> bool:
    cert = firmware.ours or firmware.certificate
    return any(cert is None or key.fingerprint != cert.fingerprint for key in firmware.queued)


def _blocked(observed: Observed) -> str:
    key = f" (SHA1 {observed.certificate.fingerprint})" if observed.certificate is not None else ""
    return (
        f"the key that modules are signed with{key} waits to be enrolled; with somebody at the console, reboot, "
        "choose Enroll MOK, Continue, Yes in MOK manager, and give the one-time password that was shown; then "
        "apply again. Without the password: mokutil --revoke-import, and apply again"
    )


__all__ = ["Observed", "SecureBootKeyEnrolled"]
