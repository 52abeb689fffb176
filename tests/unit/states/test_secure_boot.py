"""Keys and signatures under Secure Boot: what is made, queued and signed, and when only a person can go on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpustate import NodeFacts
from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.queries import Answer
from gpustate.formats.certificates import Certificate, Listed, parse_keys, parse_mokutil
from gpustate.ops.modsign import CERTIFICATE_PATH, ENROLLED
from gpustate.plan import make
from gpustate.probes.kernels import Kernel
from gpustate.states.secure_boot import SecureBootKeyEnrolled
from gpustate.states.secure_boot.observed import CONF_PATH, Firmware, FirmwareQuery
from gpustate.testing import FakeNode, check_contract, converge

STEPLESS = {"secure-boot": "Secure Boot is off there"}

OURS = Certificate(CERTIFICATE_PATH, "aa" * 20, "7c01", "59a7", private=True)
DKMS = Certificate("/var/lib/dkms/mok.pub", "bb" * 20, "7c02", "59a8", private=True)
K = "6.1.0-28-amd64"
MODULE = f"/lib/modules/{K}/updates/dkms/nvidia.ko"


class World(FakeNode):
    """A node whose firmware does what mokutil and a person tell it."""

    firmware: Firmware
    kernel: Kernel

    def __init__(self, firmware: Firmware, **module: Any) -> None:
        super().__init__(
            facts=NodeFacts(os_id="debian", package_manager="apt", kernel=K, systemd=True),
            answers={"FirmwareQuery": lambda _: self.firmware, "Kernels": lambda _: (self.kernel,)},
            runs={
                "create a key pair": lambda _: self.gets(own=True, ours=OURS, certificate=OURS),
                "sign the nvidia": lambda _: self.sign(),
                "queue the enrolment": lambda _: self.gets(
                    queued=(Listed(self.target.fingerprint),)
                ),
                "cancel the queued": lambda _: self.gets(queued=()),
                "destroy": lambda _: self.gets(own=False, ours=None),
                "install mokutil": lambda _: self.gets(lacks=(), brought=True),
                "remove the packages": lambda _: self.gets(lacks=("mokutil",), brought=False),
            },
        )
        self.firmware = firmware
        self.kernel = Kernel(K, image=f"/boot/vmlinuz-{K}", running=True, bootable=True)
        if module:
            self.kernel = replace(
                self.kernel, module_path=MODULE, nvidia_version="580.65.06", **module
            )

    @property
    def target(self) -> Certificate:
        found = self.firmware.ours or self.firmware.certificate
        assert found is not None
        return found

    def gets(self, **fields: Any) -> None:
        self.firmware = replace(self.firmware, **fields)

    def sign(self) -> None:
        self.kernel = replace(self.kernel, nvidia_signer="us", nvidia_key=self.target.serial)


def outcome(state: SecureBootKeyEnrolled, node: World) -> StateResult:
    view: Any = SimpleNamespace(facts=node.node_facts)
    look = make.Observations(view=view, observed={"secure-boot": state.probe(node)})
    return make.make([state], look)["secure-boot"]


ON = Firmware(on=True)


def test_nothing_is_asked_of_a_node_without_secure_boot() -> None:
    node = World(Firmware())
    *_, last = converge(SecureBootKeyEnrolled(), node)
    assert not node.done
    assert last.blocked is None


def test_a_key_is_made_pointed_at_and_queued_and_then_only_a_person_can_go_on() -> None:
    node, state = World(ON), SecureBootKeyEnrolled()
    first, second = converge(state, node)
    assert first.fields == {"own", "conf_text", "enrolment"}
    assert not second
    assert CERTIFICATE_PATH in node.files[CONF_PATH]
    assert state.preview(state.probe(node)) == ENROLLED, "a driver that is built then loads"
    assert state.preview(state.probe(World(Firmware()))) == ""
    became = outcome(state, node)
    assert became.outcome is Outcome.BLOCKED
    assert OURS.fingerprint in became.reason
    node.gets(enrolled=(Listed(OURS.fingerprint),), queued=())
    assert outcome(state, node).outcome is Outcome.UNCHANGED


def test_a_key_that_dkms_has_made_is_enrolled_and_no_other_is_made() -> None:
    node = World(replace(ON, certificate=DKMS))
    first, _ = converge(SecureBootKeyEnrolled(), node)
    assert first.fields == {"enrolment"}
    assert CONF_PATH not in node.files


def test_a_key_is_known_by_the_kernels_keyring_too() -> None:
    node = World(replace(ON, certificate=DKMS, keyring={"59a8": "DKMS module signing key"}))
    assert not outcome(SecureBootKeyEnrolled(), node).plan


@pytest.mark.parametrize(
    ("module", "anew"),
    [
        ({}, True),
        ({"nvidia_signer": "who", "nvidia_key": "0e"}, True),
        ({"nvidia_signer": "DKMS", "nvidia_key": "7c02"}, False),
        ({"nvidia_signer": "Debian Secure Boot CA", "nvidia_key": "0f"}, False),
    ],
)
def test_a_module_is_signed_anew_when_nobody_vouches_for_its_signer(
    module: dict[str, str], anew: bool
) -> None:
    firmware = replace(ON, certificate=DKMS, keyring={"6cce": "Debian Secure Boot CA"})
    node = World(firmware, nvidia_license="NVIDIA", **module)
    first, second = converge(SecureBootKeyEnrolled(), node)
    assert ("signed" in first.fields) is anew
    assert not second


def test_signed_modules_of_ubuntu_are_preferred_unless_a_key_is_asked_for() -> None:
    name = f"linux-modules-nvidia-580-server-open-{K}"
    node = World(replace(ON, prebuilt=(name,)))
    plan = SecureBootKeyEnrolled().plan(SecureBootKeyEnrolled().probe(node))
    assert not plan
    assert "signed itself" in plan.notes[0] or "has signed" in plan.notes[0]
    own = SecureBootKeyEnrolled(key="own")
    assert own.plan(own.probe(node)).fields >= {"own", "enrolment"}
    node.gets(prebuilt=("linux-modules-nvidia-580-server-open-5.15.0-1-generic",))
    assert SecureBootKeyEnrolled().plan(SecureBootKeyEnrolled().probe(node))


def test_somebody_elses_request_is_not_given_this_password() -> None:
    node = World(replace(ON, queued=(Listed("cc" * 20),)))
    state = SecureBootKeyEnrolled()
    assert "another key is queued" in (state.refuse(state.probe(node)) or "")


def test_missing_tools_come_along_and_go_again() -> None:
    node = World(replace(ON, lacks=("mokutil",)))
    first, _ = converge(SecureBootKeyEnrolled(), node)
    assert "tools" in first.fields
    gone, last = converge(SecureBootKeyEnrolled(ensure="absent"), node)
    assert gone.fields == {"brought", "own", "conf_text", "enrolment"}
    assert not last
    assert CONF_PATH not in node.files
    assert not node.firmware.queued


def test_a_firmware_that_trusts_a_key_is_told_of_when_the_key_goes() -> None:
    node = World(replace(ON, own=True, ours=OURS, enrolled=(Listed(OURS.fingerprint),)))
    state = SecureBootKeyEnrolled(ensure="absent")
    assert OURS.fingerprint in state.plan(state.probe(node)).notes[0]


LISTED = """[key 1]
Owner: 605dab50-e046-4300-abb6-3dd810dd8b23
SHA1 Fingerprint: 53:61:0c:f8:1f:bd:7e:0c:eb:67:91:3c:9e:f3:e7:94:a9:63:3e:cb
Certificate:
    Data:
        Version: 3 (0x2)
        Serial Number:
            ed:54:a1:d5:af:87:48:94
        Signature Algorithm: sha256WithRSAEncryption
        Subject: CN = Debian Secure Boot CA

[key 2]
SHA1 Fingerprint: 6e:53:34:d9:64:11:f9:cf:ad:11:e3:b4:5c:06:6a:58:74:bc:3e:83
        Serial Number: 1 (0x1)
"""


def test_lists_of_mokutil_and_of_the_kernel_are_read() -> None:
    assert parse_mokutil(LISTED) == (
        Listed("53610cf81fbd7e0ceb67913c9ef3e794a9633ecb", "ed54a1d5af874894"),
        Listed("6e5334d96411f9cfad11e3b45c066a5874bc3e83", "1"),
    )
    assert parse_mokutil("MokListRT is empty\n") == ()
    line = "1f1f08a1 I------     1 perm 1f030000     0     0 asymmetri Debian Secure Boot CA: 6ccece7e4c6c0d1f6149f3dd27dfcc5cbb419ea1: X509.rsa bb419ea1 []\n"
    assert parse_keys(line) == {"6ccece7e4c6c0d1f6149f3dd27dfcc5cbb419ea1": "Debian Secure Boot CA"}


def test_what_a_node_says_is_read_and_nonsense_is_no_key() -> None:
    text = (
        "on=1\nuntold=1\nlacks=mokutil\nown=600\nid=ubuntu\nconf=\n"
        f"certificate={CERTIFICATE_PATH}|1\nsha1 Fingerprint={':'.join(['AA'] * 20)}\nserial=7C01\n"
        "X509v3 Subject Key Identifier: \n    59:A7\n"
        "certificate=/var/lib/shim-signed/mok/MOK.der|\nnot a certificate\n"
        "=enrolled\n=queued\n=keyring\n=prebuilt\nlinux-modules-nvidia-580-server-x\n"
    )
    found = FirmwareQuery().parse(Answer(0, text.encode()))
    assert found.ours == OURS
    assert found.certificate is None
    assert found.own
    assert found.untold
    assert found.lacks == ("mokutil",)
    assert FirmwareQuery().parse(Answer(0, b"\xff\x00=queued\n")) == replace(Firmware(), keyring={})


@pytest.mark.parametrize("firmware", [Firmware(), ON, replace(ON, certificate=DKMS)])
def test_it_keeps_the_contract_of_every_state(firmware: Firmware) -> None:
    check_contract(SecureBootKeyEnrolled(), World(firmware))
